package prefix

import (
	"runtime"
	"sync"
	"syscall"
	"unsafe"
)

// hugePages carves pieces from huge pages, where the system has them to give.
// What is read after Free is a fault.
type hugePages struct {
	left []uint64

	mu      sync.Mutex
	regions [][]byte
}

func hugeMemory() func(*Index) Memory {
	return func(x *Index) Memory {
		h := &hugePages{}
		runtime.AddCleanup(x, (*hugePages).Free, h)
		return h
	}
}

func (h *hugePages) Words(n int) []uint64 {
	const region = 64 << 20
	if len(h.left) < n {
		mem, err := syscall.Mmap(-1, 0, region, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		if err != nil {
			return make([]uint64, n)
		}
		_ = syscall.Madvise(mem, 14) // MADV_HUGEPAGE
		h.mu.Lock()
		h.regions = append(h.regions, mem)
		h.mu.Unlock()
		h.left = unsafe.Slice((*uint64)(unsafe.Pointer(&mem[0])), region/8)
	}
	piece := h.left[:n]
	h.left = h.left[n:]
	return piece
}

func (h *hugePages) Free() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, mem := range h.regions {
		if err := syscall.Munmap(mem); err != nil {
			panic(err)
		}
	}
	h.regions = nil
}
