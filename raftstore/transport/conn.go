package transport

import (
	"crypto/tls"
	"net"
	"sync"
	"syscall"
	"time"
)

// Conn is a secured connection to a member of the cluster.
type Conn struct {
	// Conn is the TLS connection. Close is overridden.
	*tls.Conn
	// PeerID is the node at the other end, as its certificate says.
	PeerID string
	// Proto is what is spoken.
	Proto string

	raw       net.Conn
	port      *Port
	authority string    // whose word for PeerID it is
	inbound   bool      // counted against the bounds
	listener  *listener // of an inbound connection

	close sync.Once
	err   error
}

// Close says goodbye, within a bound, and ends the connection. It may be called
// again.
func (c *Conn) Close() error {
	c.close.Do(func() {
		// TLS would wait five seconds for a peer that does not read.
		cut := time.AfterFunc(closeGrace, func() { _ = c.raw.Close() })
		c.err = c.Conn.Close()
		cut.Stop()
		c.port.table.forget(c)
	})
	return c.err
}

// keepAlive finds dead peers on idle connections, in about ten seconds.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}

// tune sets what an accepted or dialled connection needs. On one that is not
// TCP there is nothing to set.
func tune(c net.Conn) {
	t, ok := c.(interface {
		SetNoDelay(noDelay bool) error
		SetKeepAliveConfig(config net.KeepAliveConfig) error
		syscall.Conn
	})
	if !ok {
		return
	}
	_ = t.SetNoDelay(true)
	_ = t.SetKeepAliveConfig(keepAlive)
	if raw, err := t.SyscallConn(); err == nil {
		_ = limitUnacked(raw)
	}
}
