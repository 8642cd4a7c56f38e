package zmtp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// ErrClosed means that the socket has been closed.
var ErrClosed = errors.New("zmtp: socket closed")

// Inbound is a received message. The receiver owns its frames.
type Inbound struct {
	// Peer names the connection it came by, never 0. A new connection to the same
	// endpoint has another number: what was sent between the two is lost.
	Peer uint64
	// Frames are at least one, but for what Options.Announce adds.
	Frames [][]byte
}

// Announces reports whether this is no message but says that Peer has come up.
func (in Inbound) Announces() bool { return len(in.Frames) == 0 }

// socket is what all kinds share: connections, and a queue of what they receive.
type socket struct {
	kind    string
	opts    Options
	in      chan Inbound
	joined  func(*peer)                        // a connection is up
	receive func(*peer, [][]byte) (queue bool) // before a message is queued
	ctx     context.Context                    // ends with the socket, which owns its goroutines
	cancel  context.CancelFunc
	tasks   sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	peers   map[uint64]*peer
	open    map[net.Conn]struct{} // also those still shaking hands
	lastID  uint64
	changed chan struct{} // closed when a peer joins
}

func newSocket(kind string, o Options) *socket {
	s := &socket{
		kind: kind, opts: o.withDefaults(), peers: map[uint64]*peer{},
		open: map[net.Conn]struct{}{}, changed: make(chan struct{}),
	}
	s.in = make(chan Inbound, s.opts.Queue)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.joined = func(*peer) {}
	s.receive = func(*peer, [][]byte) bool { return true }
	return s
}

// Connect keeps a connection to endpoint until the socket is closed. It returns
// at once; errors wrap ErrEndpoint or ErrClosed.
func (s *socket) Connect(endpoint string) error {
	network, address, err := parseEndpoint(endpoint, false)
	if err != nil {
		return err
	}
	return s.spawn(func() { s.keepConnected(network, address) })
}

// Bind listens on endpoint and returns the address it got.
func (s *socket) Bind(ctx context.Context, endpoint string) (net.Addr, error) {
	network, address, err := parseEndpoint(endpoint, true)
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("zmtp: %w", err)
	}
	if err := s.spawn(func() { s.accept(ln) }); err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return ln.Addr(), nil
}

// spawn runs f as one of the socket's goroutines.
func (s *socket) spawn(f func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	s.tasks.Go(f)
	return nil
}

// Peers is the number of connections that are up.
func (s *socket) Peers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.peers)
}

// Close ends all connections and returns when all goroutines have ended. What
// is still queued is lost. Closing twice is harmless.
func (s *socket) Close() error {
	s.mu.Lock()
	s.closed = true
	s.cancel()
	for c := range s.open {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.tasks.Wait()
	return nil
}

// recv takes the next message.
func (s *socket) recv(ctx context.Context) (Inbound, error) {
	select {
	case m := <-s.in:
		return m, nil
	case <-ctx.Done():
		return Inbound{}, ctx.Err()
	case <-s.ctx.Done():
		return Inbound{}, ErrClosed
	}
}

// keepConnected dials again and again. A connection that lasted resets the
// pause.
func (s *socket) keepConnected(network, address string) {
	pause := s.opts.ReconnectMin
	for s.ctx.Err() == nil {
		began := time.Now()
		d := net.Dialer{Timeout: s.opts.DialTimeout, KeepAlive: 15 * time.Second}
		if conn, err := d.DialContext(s.ctx, network, address); err == nil && s.serve(conn) == nil &&
			time.Since(began) > s.opts.ReconnectMax {
			pause = s.opts.ReconnectMin
		}
		jittered := time.Duration(float64(pause) * (.75 + rand.Float64()/2))
		t := time.NewTimer(jittered)
		select {
		case <-t.C:
		case <-s.ctx.Done():
		}
		t.Stop()
		pause = min(2*pause, s.opts.ReconnectMax)
	}
}

// accept takes connections until the socket is closed.
func (s *socket) accept(ln net.Listener) {
	stop := context.AfterFunc(s.ctx, func() { _ = ln.Close() })
	defer stop()
	defer func() { _ = ln.Close() }()
	for {
		conn, err := ln.Accept()
		if err != nil {
			// Out of file descriptors, most likely: others may free some.
			if errors.Is(err, net.ErrClosed) || !s.wait(s.opts.ReconnectMin) {
				return
			}
			continue
		}
		s.mu.Lock()
		full := len(s.open) >= s.opts.MaxPeers
		s.mu.Unlock()
		if full || s.spawn(func() { _ = s.serve(conn) }) != nil {
			_ = conn.Close()
		}
	}
}

func (s *socket) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// serve runs one connection to its end. It fails when the handshake does.
func (s *socket) serve(conn net.Conn) error {
	if !s.track(conn) {
		return errors.Join(ErrClosed, conn.Close())
	}
	defer s.untrack(conn)
	p, kind, err := handshake(conn, s.kind, &s.opts)
	if err != nil {
		return err
	}
	if !compatible(s.kind, kind) {
		return fmt.Errorf("%w: a %s cannot talk to a %s", ErrProtocol, s.kind, kind)
	}
	s.join(p)
	var writer sync.WaitGroup
	writer.Go(func() {
		if p.write(&s.opts) != nil {
			_ = conn.Close() // wakes the reader
		}
	})
	if !s.opts.Announce || s.queue(Inbound{Peer: p.id}) {
		_ = p.read(s.ctx, func(frames [][]byte) bool {
			return !s.receive(p, frames) || s.queue(Inbound{p.id, frames})
		})
	}
	s.leave(p)
	_ = conn.Close()
	writer.Wait()
	return nil
}

// queue lets in wait to be received, once there is room; false when the socket
// was closed first.
func (s *socket) queue(in Inbound) bool {
	select {
	case s.in <- in:
		return true
	case <-s.ctx.Done():
		return false
	}
}

func (s *socket) track(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.open[conn] = struct{}{}
	}
	return !s.closed
}

func (s *socket) untrack(conn net.Conn) {
	_ = conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, conn)
}

func (s *socket) join(p *peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastID++
	p.id = s.lastID
	s.joined(p)
	s.peers[p.id] = p
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *socket) leave(p *peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.peers, p.id)
	close(p.gone)
}

// find returns the peer with the id, or any for 0, and what changes next.
func (s *socket) find(id uint64) (*peer, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id > 0 {
		return s.peers[id], s.changed
	}
	for _, p := range s.peers {
		return p, s.changed
	}
	return nil, s.changed
}
