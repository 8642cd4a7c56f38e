package host

import (
	"runtime"

	"github.com/tetratelabs/wazero/experimental"
)

// memories gives guests their memory outside of Go's heap. The collector neither sees
// it nor is driven by it (an instance of a policy in Go reserves 4 MiB, more than a
// small heap: each one began a collection), it costs what was touched, it never moves,
// and it is gone the moment an instance is closed.
type memories struct{}

// Allocate reserves the most that the guest may ever have.
func (memories) Allocate(_, most uint64) experimental.LinearMemory {
	b, ok := reserve(int(most))
	if !ok {
		return &heap{make([]byte, most)}
	}
	r := &region{all: b}
	// An instantiation that fails half-way does not free what it took.
	r.lost = runtime.AddCleanup(r, release, b)
	return r
}

// region is memory that was reserved from the system.
type region struct {
	all  []byte
	lost runtime.Cleanup
}

// Reallocate is the first size bytes, always at the same place.
func (r *region) Reallocate(size uint64) []byte {
	if size > uint64(len(r.all)) {
		return nil
	}
	return r.all[:size]
}

// Free gives it back. Nobody may look at it any more.
func (r *region) Free() {
	r.lost.Stop()
	release(r.all)
	r.all = nil
}

// heap is memory of Go's, where the system has none to reserve.
type heap struct{ all []byte }

// Reallocate is as region's.
func (h *heap) Reallocate(size uint64) []byte {
	if size > uint64(len(h.all)) {
		return nil
	}
	return h.all[:size]
}

// Free leaves it to the collector.
func (*heap) Free() {}
