package pages

import (
	"testing"
	"unsafe"
)

func TestAlloc(t *testing.T) {
	for _, n := range []int{0, 1, 64, 1000, large - 1, large, 3*large + 5} {
		b := Alloc(n)
		if len(b) != n || cap(b) != n {
			t.Fatalf("Alloc(%d) has length %d, capacity %d", n, len(b), cap(b))
		}
		align := uintptr(Alignment)
		if n >= large {
			align = large
		}
		if at := uintptr(unsafe.Pointer(unsafe.SliceData(b))); at%align != 0 {
			t.Errorf("Alloc(%d) at %#x, not a multiple of %d", n, at, align)
		}
		for i := range b {
			if b[i] != 0 {
				t.Fatalf("Alloc(%d): byte %d is %d", n, i, b[i])
			}
			b[i] = 1
		}
	}
}
