//go:build unix

package tcp

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"github.com/yardmaster/yardmaster/gpu/transfer"
)

// scatter reads what has arrived into place. It waits for the socket to become
// readable outside the fence, and copies inside it without waiting.
func (st *stream) scatter(l *transfer.Landing) error {
	var failed error
	err := st.raw.Read(func(fd uintptr) bool {
		for l.Left() > 0 {
			n, rerr := 0, error(nil)
			l.Fill(func(room []byte) int {
				n, rerr = unix.Read(int(fd), room)
				return max(n, 0)
			})
			switch {
			case errors.Is(rerr, unix.EINTR):
			case errors.Is(rerr, unix.EAGAIN):
				return false
			case rerr != nil:
				failed = rerr
				return true
			case n == 0:
				failed = io.ErrUnexpectedEOF
				return true
			}
		}
		return true
	})
	if failed != nil {
		return failed
	}
	if err != nil {
		return ended(err)
	}
	return nil
}
