package transport

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unackedTimeout is how long sent bytes may go without a sign from the peer's
// machine. The kernel's own patience is a quarter of an hour.
const unackedTimeout = 10 * time.Second

func limitUnacked(c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unackedTimeout.Milliseconds()))
	})
}
