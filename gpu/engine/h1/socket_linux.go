package h1

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// socket reads and writes a TCP connection without telling the scheduler of each
// system call. They never block: the descriptor is non-blocking, and Go's poller
// waits for it. Telling would wake the runtime's monitor thread for every burst of
// work, which takes an eighth of the processor time of a stream. One goroutine may
// read while another writes.
type socket struct {
	*net.TCPConn
	raw      syscall.RawConn
	in, out  transfer
	reading  func(fd uintptr) bool // methods, bound once
	writing  func(fd uintptr) bool
	unpolled bool
}

// transfer is one read or write under way.
type transfer struct {
	p   []byte
	n   int
	err error
}

func newSocket(c *net.TCPConn) *socket {
	s := &socket{TCPConn: c}
	raw, err := c.SyscallConn()
	if s.raw = raw; err != nil {
		s.unpolled = true
	}
	s.reading, s.writing = s.readOnce, s.writeOnce
	return s
}

// Read reads what there is, waiting for the first byte.
func (s *socket) Read(p []byte) (int, error) {
	if s.unpolled || len(p) == 0 {
		return s.TCPConn.Read(p)
	}
	s.in = transfer{p: p}
	err := s.raw.Read(s.reading)
	n, own := s.in.n, s.in.err
	s.in = transfer{}
	if err == nil {
		err = own
	}
	return n, err
}

func (s *socket) readOnce(fd uintptr) (done bool) {
	t := &s.in
	n, errno := call(syscall.SYS_READ, fd, t.p)
	switch {
	case errno == syscall.EAGAIN:
		return false
	case errno != 0:
		t.err = os.NewSyscallError("read", errno)
	case n == 0:
		t.err = io.EOF
	}
	t.n = n
	return true
}

// Write writes all of p.
func (s *socket) Write(p []byte) (int, error) {
	if s.unpolled || len(p) == 0 {
		return s.TCPConn.Write(p)
	}
	s.out = transfer{p: p}
	err := s.raw.Write(s.writing)
	n, own := s.out.n, s.out.err
	s.out = transfer{}
	if err == nil {
		err = own
	}
	return n, err
}

func (s *socket) writeOnce(fd uintptr) (done bool) {
	t := &s.out
	for t.n < len(t.p) {
		n, errno := call(syscall.SYS_WRITE, fd, t.p[t.n:])
		switch {
		case errno == syscall.EAGAIN:
			return false
		case errno != 0:
			t.err = os.NewSyscallError("write", errno)
			return true
		}
		t.n += n
	}
	return true
}

// call is read(2) or write(2) with p, which is not empty, tried again when a
// signal came.
func call(number, fd uintptr, p []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall(number, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		switch errno {
		case 0:
			return int(n), 0
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}
