package pages

import "golang.org/x/sys/unix"

// advise asks for large pages under b, which is aligned to them and not yet
// touched. A kernel that cannot give them gives small ones.
func advise(b []byte) { _ = unix.Madvise(b, unix.MADV_HUGEPAGE) }
