package prefix

import (
	"syscall"
	"unsafe"
)

// hugeMemory carves pieces from huge pages, where the system has them to give.
func hugeMemory() func(words int) []uint64 {
	const region = 64 << 20
	var left []uint64
	return func(words int) []uint64 {
		if len(left) < words {
			mem, err := syscall.Mmap(-1, 0, region, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
			if err != nil {
				return make([]uint64, words)
			}
			_ = syscall.Madvise(mem, 14) // MADV_HUGEPAGE
			left = unsafe.Slice((*uint64)(unsafe.Pointer(&mem[0])), region/8)
		}
		piece := left[:words]
		left = left[words:]
		return piece
	}
}
