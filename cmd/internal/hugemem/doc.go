// Package hugemem hands out memory in huge pages, outside the Go heap, for
// tables whose lookups are bound by address translation. All that one owner had is
// given back together, when the owner is no longer reachable.
package hugemem

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// region is how much is mapped at once.
const region = 32 << 20

// Source is what some allocators have in common: how much they have mapped. The
// zero value is ready; it is safe for concurrent use.
type Source struct{ mapped atomic.Int64 }

// New is an allocator with regions of its own, which are freed once owner is no
// longer reachable: whoever reads them has to keep it. owner may lead to the
// allocator. What others have mapped may be garbage that waits for a collector,
// which sees none of it and takes its time; so one runs first.
func New[T any](s *Source, owner *T) *Allocator {
	if s.mapped.Load() > 0 {
		runtime.GC()
	}
	a := &Allocator{source: s}
	runtime.AddCleanup(owner, (*Allocator).Free, a)
	return a
}

// Mapped is how many bytes are mapped at present.
func (s *Source) Mapped() int64 { return s.mapped.Load() }

// Allocator carves pieces from mapped regions. It is made by [New] and safe for
// concurrent use.
type Allocator struct {
	source *Source

	mu      sync.Mutex
	left    []uint64
	regions []mapping
}

// Words is zeroed memory of n words. Where the system maps none, and where n is
// too large for a region, it comes from the Go heap.
func (a *Allocator) Words(n int) []uint64 {
	if n > region/8 {
		return make([]uint64, n)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.left) < n {
		a.grow()
	}
	if len(a.left) < n {
		return make([]uint64, n)
	}
	piece := a.left[:n:n]
	a.left = a.left[n:]
	return piece
}

// grow maps another region, if the system has one. What was left of the last one
// is not used.
func (a *Allocator) grow() {
	words, m := mapRegion(region)
	if words == nil {
		return
	}
	a.left, a.regions = words, append(a.regions, m)
	a.source.mapped.Add(region)
}

// Free gives back all that Words handed out, but for what is of the Go heap: who
// reads it then faults. The allocator is empty again, so freeing twice is harmless.
func (a *Allocator) Free() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range a.regions {
		m.unmap()
		a.source.mapped.Add(-region)
	}
	a.left, a.regions = nil, nil
}
