package h1

import (
	"io"
	"os"
	"syscall"
	"unsafe"
)

// exchange sends a request and waits for the first bytes of its response within
// one use of the poller. A response is never there when its request has just left:
// waiting at once saves the system call that would find nothing. That is safe
// only because the poller is told to look before the request leaves, so that no
// answer can come unnoticed. For the same reason the connection is looked at after
// that and before the request: whether the peer has closed it while it was idle.
type exchange struct {
	s      *socket
	once   func(fd uintptr) bool // step, bound once
	out    []byte                // of the request, what has not been sent; nil when nothing waits
	in     []byte                // where the response goes
	n      int                   // bytes read
	look   bool                  // the connection has served before
	full   bool                  // the kernel did not take the whole request at once
	failed error                 // of writing
	err    error
}

func (e *exchange) bind(s *socket) { e.s, e.once = s, e.step }

// begin takes a request that the next run sends. Its bytes are used until then.
func (e *exchange) begin(out []byte, reused bool) {
	*e = exchange{s: e.s, once: e.once, out: out, look: reused}
}

// waits reports whether a request waits to be sent.
func (e *exchange) waits() bool { return e.out != nil }

// run sends the request and reads what comes first. That a server answers without
// reading all of the request is no error.
func (e *exchange) run(p []byte) (int, error) {
	if e.s.unpolled {
		return e.plainly(p)
	}
	e.in = p
	err := e.s.raw.Read(e.once)
	if err == nil && e.full {
		return e.plainly(p)
	}
	n, own, failed := e.n, e.err, e.failed
	e.begin(nil, false)
	switch {
	case err != nil:
		return n, err
	case own != nil && failed != nil:
		return n, failed
	}
	return n, own
}

// plainly sends what is left and reads, one after the other.
func (e *exchange) plainly(p []byte) (int, error) {
	out := e.out
	e.begin(nil, false)
	_, failed := e.s.Write(out)
	n, err := e.s.Read(p)
	if err != nil && failed != nil {
		return n, failed
	}
	return n, err
}

// step does what can be done without waiting. It reports whether the exchange is
// over.
func (e *exchange) step(fd uintptr) (done bool) {
	if e.look {
		e.look = false
		if !silent(fd) {
			e.err = errStale
			return true
		}
	}
	if len(e.out) > 0 {
		n, errno := call(syscall.SYS_WRITE, fd, e.out)
		switch {
		case errno == syscall.EAGAIN:
			e.full = true
			return true
		case errno != 0:
			e.failed = os.NewSyscallError("write", errno)
			e.out = e.out[:0]
		case n < len(e.out):
			e.out, e.full = e.out[n:], true
			return true
		default:
			e.out = e.out[:0]
			return false // and wait
		}
	}
	n, errno := call(syscall.SYS_READ, fd, e.in)
	switch {
	case errno == syscall.EAGAIN && e.failed == nil:
		return false
	case errno != 0:
		e.err = os.NewSyscallError("read", errno)
	case n == 0:
		e.err = io.EOF
	}
	e.n = n
	return true
}

// silent reports whether the connection is open and has nothing to read.
func silent(fd uintptr) bool {
	var one [1]byte
	for {
		_, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&one)), 1, syscall.MSG_PEEK|syscall.MSG_DONTWAIT, 0, 0)
		if errno != syscall.EINTR {
			return errno == syscall.EAGAIN
		}
	}
}
