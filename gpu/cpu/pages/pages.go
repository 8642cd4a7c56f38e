// Package pages allocates the engine's large memory: weights and KV blocks.
//
// A product that streams through a hundred megabytes, or attention that jumps
// between blocks, spends much of its time on address translation when pages
// have 4 KiB. Linux gives 2 MiB pages to whoever asks, by default; Go's runtime
// does not ask.
package pages

import "unsafe"

const (
	// Alignment is the alignment of what Alloc returns: a cache row.
	Alignment = 64
	large     = 2 << 20
)

// Alloc returns n zero bytes, aligned to a cache row. From 2 MiB on they are
// aligned to large pages and lie on them where the system has them. The memory
// is the garbage collector's, as any other.
func Alloc(n int) []byte {
	align := Alignment
	if n >= large {
		align = large
	}
	b := make([]byte, n+align)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (align - 1)
	b = b[skip : skip+n : skip+n]
	if align == large {
		advise(b[:n/large*large])
	}
	return b
}
