package transport

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/yardmaster/yardmaster/core/measure"
)

// table knows every connection and every protocol of a port. No lock of it is
// held while anything else is called.
type table struct {
	mu        sync.Mutex
	closed    bool
	listeners map[string]*listener
	conns     map[*Conn]struct{}
	inbound   int
	perPeer   map[string]int // inbound, by peer; no zeros

	maxConns, maxPerPeer int
	in, out              measure.Gauge
}

func (t *table) init(cfg PortConfig) {
	t.maxConns, t.maxPerPeer = cfg.MaxConns, cfg.MaxPerPeer
	t.in = cfg.Registry.Gauge(measure.PeerConnections, "in")
	t.out = cfg.Registry.Gauge(measure.PeerConnections, "out")
	t.listeners = map[string]*listener{}
	t.conns = map[*Conn]struct{}{}
	t.perPeer = map[string]int{}
}

func (t *table) listen(l *listener) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, taken := t.listeners[l.proto]; taken {
		panic("transport: a second listener for " + l.proto)
	}
	if t.closed {
		l.close.Do(func() { close(l.done) })
		return
	}
	t.listeners[l.proto] = l
}

func (t *table) unlisten(l *listener) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.listeners[l.proto] == l {
		delete(t.listeners, l.proto)
	}
}

func (t *table) protos() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.listeners) == 0 {
		// Without any name TLS would agree to every one.
		return []string{"none"}
	}
	return slices.Sorted(maps.Keys(t.listeners))
}

// admit counts an inbound connection and finds its listener.
func (t *table) admit(c *Conn) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.listeners[c.Proto]
	switch {
	case t.closed:
		return ErrClosed
	case l == nil:
		return fmt.Errorf("%w: %q", ErrNoProtocol, c.Proto)
	case t.inbound >= t.maxConns:
		return fmt.Errorf("%w: %d connections are open", ErrBusy, t.inbound)
	case t.perPeer[c.PeerID] >= t.maxPerPeer:
		return fmt.Errorf("%w: %d connections of %s are open", ErrBusy, t.perPeer[c.PeerID], c.PeerID)
	case len(l.queue)+l.promised >= cap(l.queue):
		return fmt.Errorf("%w: %d connections wait for %s", ErrBusy, len(l.queue), c.Proto)
	}
	c.listener = l
	l.promised++
	t.inbound++
	t.perPeer[c.PeerID]++
	t.conns[c] = struct{}{}
	t.in.Add(1)
	return nil
}

// keep takes note that an admitted connection is where it was promised to be,
// or will never be.
func (t *table) keep(l *listener) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l.promised--
}

// track takes note of an outbound connection.
func (t *table) track(c *Conn) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrClosed
	}
	t.conns[c] = struct{}{}
	t.out.Add(1)
	return nil
}

func (t *table) forget(c *Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.conns[c]; !known {
		return
	}
	delete(t.conns, c)
	if !c.inbound {
		t.out.Add(-1)
		return
	}
	t.in.Add(-1)
	t.inbound--
	if t.perPeer[c.PeerID]--; t.perPeer[c.PeerID] == 0 {
		delete(t.perPeer, c.PeerID)
	}
}

func (t *table) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.conns)
}

// find gives the connections for which pick is true. pick must be quick.
func (t *table) find(pick func(*Conn) bool) []*Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*Conn
	for c := range t.conns {
		if pick(c) {
			out = append(out, c)
		}
	}
	return out
}

// close ends everything and lets nothing in any more.
func (t *table) close() {
	t.mu.Lock()
	t.closed = true
	listeners := slices.Collect(maps.Values(t.listeners))
	conns := slices.Collect(maps.Keys(t.conns))
	t.mu.Unlock()
	for _, l := range listeners {
		_ = l.Close()
	}
	closeAll(conns)
}

// closeAll closes side by side: each may take as long as closeGrace.
func closeAll(conns []*Conn) {
	var all sync.WaitGroup
	for _, c := range conns {
		all.Go(func() { _ = c.Close() })
	}
	all.Wait()
}
