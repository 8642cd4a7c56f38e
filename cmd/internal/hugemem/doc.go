// Package hugemem hands out memory in huge pages, outside the Go heap, for
// tables whose lookups are bound by address translation. It is never given back.
package hugemem

// region is how much is mapped at once.
const region = 32 << 20

// Allocator carves pieces from mapped regions. The zero value is ready; it is
// for one goroutine at a time.
type Allocator struct{ left []uint64 }

// Words is zeroed memory of n words. Where the system maps none it comes from
// the Go heap.
func (a *Allocator) Words(n int) []uint64 {
	if n > region/8 {
		return make([]uint64, n)
	}
	if len(a.left) < n {
		a.left = mapRegion(region)
	}
	if len(a.left) < n {
		return make([]uint64, n)
	}
	piece := a.left[:n:n]
	a.left = a.left[n:]
	return piece
}
