package prefix

import (
	"syscall"
	"unsafe"
)

// hugePages carves pieces from huge pages, where the system has them to give.
// What is read after Free is a fault.
type hugePages struct {
	left    []uint64
	regions [][]byte
}

func hugeMemory() func() Memory { return func() Memory { return &hugePages{} } }

func (h *hugePages) Words(n int) []uint64 {
	const region = 64 << 20
	if len(h.left) < n {
		mem, err := syscall.Mmap(-1, 0, region, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		if err != nil {
			return make([]uint64, n)
		}
		_ = syscall.Madvise(mem, 14) // MADV_HUGEPAGE
		h.regions = append(h.regions, mem)
		h.left = unsafe.Slice((*uint64)(unsafe.Pointer(&mem[0])), region/8)
	}
	piece := h.left[:n]
	h.left = h.left[n:]
	return piece
}

func (h *hugePages) Free() {
	for _, mem := range h.regions {
		if err := syscall.Munmap(mem); err != nil {
			panic(err)
		}
	}
	h.left, h.regions = nil, nil
}
