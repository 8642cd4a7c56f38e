package hugemem

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapping is a mapped region as the system gave it.
type mapping []byte

// mapRegion maps bytes, advised to be huge pages, or returns nil.
func mapRegion(bytes int) ([]uint64, mapping) {
	const huge = 2 << 20
	mem, err := unix.Mmap(-1, 0, bytes+huge, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, nil
	}
	at := -int(uintptr(unsafe.Pointer(&mem[0]))) & (huge - 1)
	_ = unix.Madvise(mem[at:at+bytes], unix.MADV_HUGEPAGE) // ordinary pages do as well, more slowly
	return unsafe.Slice((*uint64)(unsafe.Pointer(&mem[at])), bytes/8), mem
}

func (m mapping) unmap() {
	_ = unix.Munmap(m) // fails for nothing that Mmap returned
}
