package transport

import (
	"net"
	"sync"
)

// listener gives a protocol its connections. A bounded number may wait to be
// accepted.
type listener struct {
	port  *Port
	proto string
	queue chan *Conn
	done  chan struct{}
	close sync.Once
	// promised counts connections that were admitted and are not in the queue
	// yet. The table's lock guards it.
	promised int
}

// Listener is where the connections of a protocol come in. Its Accept gives
// *Conn, whose PeerID is verified. There is one listener for a protocol; a
// second one, while the first is open, panics. After its Close the protocol is
// refused, its unaccepted connections are closed, and the accepted ones live
// on.
func (p *Port) Listener(proto string) net.Listener { return p.listen(proto) }

func (p *Port) listen(proto string) *listener {
	l := &listener{port: p, proto: proto, queue: make(chan *Conn, backlog), done: make(chan struct{})}
	p.table.listen(l)
	return l
}

// Accept waits for a connection. After Close it gives net.ErrClosed.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.next()
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (l *listener) next() (*Conn, error) {
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// push hands over a connection for which admit has kept room.
func (l *listener) push(c *Conn) {
	l.queue <- c // never waits
	l.port.table.keep(l)
	select {
	case <-l.done: // perhaps after its queue was emptied
		l.drop()
	default:
	}
}

// Close ends the listener.
func (l *listener) Close() error {
	l.close.Do(func() {
		l.port.table.unlisten(l)
		close(l.done)
		l.drop()
	})
	return nil
}

// drop closes what nobody will accept.
func (l *listener) drop() {
	var left []*Conn
	for {
		select {
		case c := <-l.queue:
			left = append(left, c)
			continue
		default:
		}
		closeAll(left)
		return
	}
}

// Addr is the port's.
func (l *listener) Addr() net.Addr { return l.port.Addr() }
