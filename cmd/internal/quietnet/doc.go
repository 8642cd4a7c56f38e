// Package quietnet has TCP connections whose reads and writes the Go scheduler is not
// told of. They never block: the descriptor is non-blocking, and Go's poller does
// the waiting. Telling would wake the runtime's monitor thread for every message
// that comes after a pause, which costs a commit in a cluster 5 % of its time.
//
// Packages server/h1 and gpu/engine/h1 have sockets of the same kind, which do more
// within one use of the poller; rooms share no code but core's, and core has no
// sockets. Package raftstore gets these through [Listen] and [Dial].
package quietnet

import (
	"context"
	"net"
)

// Listen makes the connections that ln accepts quiet, those of TCP.
func Listen(ln net.Listener) net.Listener { return listener{ln} }

type listener struct{ net.Listener }

// Accept waits for a connection.
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return quieten(c), nil
}

// Dial is net.Dialer's with a connection that is quiet, if it is one of TCP.
func Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return quieten(c), nil
}
