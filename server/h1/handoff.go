package h1

import (
	"net"
	"sync"
	"sync/atomic"
)

// handoff passes connections to the server behind, which sees a listener.
type handoff struct {
	addr   atomic.Pointer[addrBox]
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

type addrBox struct{ net.Addr }

func newHandoff() *handoff {
	return &handoff{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// pass hands c over, or closes it when the server behind has ended.
func (h *handoff) pass(c net.Conn) {
	select {
	case h.conns <- c:
	case <-h.closed:
		_ = c.Close()
	}
}

func (h *handoff) listener() net.Listener { return (*handoffListener)(h) }

type handoffListener handoff

// Accept waits for a connection to be handed over.
func (l *handoffListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (l *handoffListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr is the address of the listener in front.
func (l *handoffListener) Addr() net.Addr { return l.addr.Load().Addr }

// handed is a connection of which some bytes have been read already.
type handed struct {
	*net.TCPConn
	rest []byte
}

// Read returns the bytes that were read before, then the connection's.
func (c *handed) Read(p []byte) (int, error) {
	if len(c.rest) > 0 {
		n := copy(p, c.rest)
		if c.rest = c.rest[n:]; len(c.rest) == 0 {
			c.rest = nil
		}
		return n, nil
	}
	return c.TCPConn.Read(p)
}
