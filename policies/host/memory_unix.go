//go:build linux || darwin

package host

import "golang.org/x/sys/unix"

// reserve takes address space that reads as zeros and becomes memory as it is touched.
func reserve(size int) ([]byte, bool) {
	if size == 0 {
		return nil, false
	}
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	return b, err == nil
}

// release gives it back. It fails only for what reserve did not return.
func release(b []byte) { _ = unix.Munmap(b) }
