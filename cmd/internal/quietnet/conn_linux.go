package quietnet

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// conn is a quiet connection. One goroutine may read while another writes; two may
// not do the same.
type conn struct {
	*net.TCPConn
	raw     syscall.RawConn
	in, out transfer
	reading func(fd uintptr) bool // methods, bound once
	writing func(fd uintptr) bool
}

// transfer is one read or write under way.
type transfer struct {
	p   []byte
	n   int
	err error
}

func quieten(c net.Conn) net.Conn {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return c
	}
	q := &conn{TCPConn: t, raw: raw}
	q.reading, q.writing = q.readOnce, q.writeOnce
	return q
}

// Read reads what there is, waiting for the first byte.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.in.run(c.raw.Read, c.reading, p)
	return n, c.explain("read", err)
}

// Write writes all of p.
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.out.run(c.raw.Write, c.writing, p)
	return n, c.explain("write", err)
}

// explain says which connection it was, as package net does.
func (c *conn) explain(what string, err error) error {
	if err == nil || err == io.EOF { //nolint:errorlint // io.EOF itself, and from here
		return err
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err
	}
	return &net.OpError{Op: what, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// run has the poller call once until that is done.
func (t *transfer) run(poll func(func(fd uintptr) bool) error, once func(fd uintptr) bool, p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	*t = transfer{p: p}
	err := poll(once)
	n, own := t.n, t.err
	*t = transfer{}
	if err == nil {
		err = own
	}
	return n, err
}

func (c *conn) readOnce(fd uintptr) (done bool) {
	t := &c.in
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

func (c *conn) writeOnce(fd uintptr) (done bool) {
	t := &c.out
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
