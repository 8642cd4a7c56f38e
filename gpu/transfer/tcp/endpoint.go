package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/gpu/transfer"
)

// Options configure an endpoint. Zero fields take the stated default.
type Options struct {
	transfer.Config
	// MaxStreams is the most connections of one session; default 4.
	MaxStreams int
	// MaxSessions bounds the sessions dialed, and those accepted; default 256 each.
	MaxSessions int
	// Stall is how long a read or write that has begun may make no progress, and
	// how long connecting may take; default half a lease.
	Stall time.Duration
	// Idle is how long a session without transfers is kept; default 1 min.
	Idle time.Duration
	// TLS, when set, is used on every connection, both ways.
	TLS *tls.Config
}

const (
	defaultStreams  = 4
	defaultSessions = 256
	defaultIdle     = time.Minute
	// longestTick bounds how late an expiry is seen, however long the lease.
	longestTick = 250 * time.Millisecond
)

// Endpoint is a worker's place on the network for KV transfers. Its methods are
// safe for concurrent use.
type Endpoint struct {
	opt    Options
	node   *transfer.Node
	listen net.Listener
	ctx    context.Context //nolint:containedctx // the endpoint's own life, ended by Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	closing sync.Once

	mu       sync.Mutex
	dialed   map[dialKey]*session
	accepted map[acceptKey]*session
	greeting map[net.Conn]struct{} // accepted, and have not said hello
}

type dialKey struct {
	addr  string
	id    string
	epoch uint64
}

// acceptKey is a session as the dialing worker numbers it.
type acceptKey struct {
	id     string
	number uint64
}

// Listen opens an endpoint on addr (host:port).
func Listen(ctx context.Context, addr string, opt Options) (*Endpoint, error) {
	opt.Transport = "tcp"
	e := &Endpoint{dialed: map[dialKey]*session{}, accepted: map[acceptKey]*session{}, greeting: map[net.Conn]struct{}{}}
	node, err := transfer.New(opt.Config, e)
	if err != nil {
		return nil, err
	}
	if opt.Clock == nil {
		opt.Clock = clock.Real{}
	}
	if opt.MaxStreams < 0 || opt.MaxSessions < 0 || opt.Stall < 0 || opt.Idle < 0 {
		return nil, errors.New("tcp: a bound is negative")
	}
	e.opt, e.node = opt, node
	e.setDefaults()
	e.listen, err = new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("tcp: %w", err)
	}
	e.ctx, e.cancel = context.WithCancel(context.WithoutCancel(ctx))
	e.wg.Go(e.accept)
	e.wg.Go(e.tick)
	return e, nil
}

func (e *Endpoint) setDefaults() {
	o := &e.opt
	if o.MaxStreams == 0 {
		o.MaxStreams = defaultStreams
	}
	if o.MaxSessions == 0 {
		o.MaxSessions = defaultSessions
	}
	if o.Stall == 0 {
		o.Stall = e.node.Lease() / 2
	}
	if o.Idle == 0 {
		o.Idle = defaultIdle
	}
}

// Addr is where the endpoint listens.
func (e *Endpoint) Addr() net.Addr { return e.listen.Addr() }

// Node is what the endpoint carries for.
func (e *Endpoint) Node() *transfer.Node { return e.node }

// Close ends every transfer, tells the peers, and waits until no goroutine of
// the endpoint runs.
//
// Closing again only waits.
func (e *Endpoint) Close() error {
	var err error
	e.closing.Do(func() { err = e.close() })
	return err
}

func (e *Endpoint) close() error {
	err := e.listen.Close()
	e.node.Close()
	var wg sync.WaitGroup
	for _, s := range e.sessions() {
		wg.Go(s.drain)
	}
	wg.Wait()
	e.cancel()
	e.mu.Lock()
	for conn := range e.greeting {
		_ = conn.Close()
	}
	e.mu.Unlock()
	for _, s := range e.sessions() {
		s.lose(transfer.Failure(transfer.ReasonClosed, nil))
	}
	e.wg.Wait()
	return err
}

func (e *Endpoint) sessions() []*session {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]*session, 0, len(e.dialed)+len(e.accepted))
	for _, s := range e.dialed {
		out = append(out, s)
	}
	for _, s := range e.accepted {
		out = append(out, s)
	}
	return out
}

// Sessions is the number of sessions, dialed and accepted.
func (e *Endpoint) Sessions() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.dialed) + len(e.accepted)
}

// tick lets the node see the time pass, and ends sessions that nobody uses.
func (e *Endpoint) tick() {
	every := min(e.node.Lease()/4, longestTick)
	timer := e.opt.Clock.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-timer.C():
		}
		e.node.Tick()
		e.retire()
		timer.Reset(every)
	}
}

// retire ends dialed sessions that have been idle for long. Accepted ones end
// with their dialer.
func (e *Endpoint) retire() {
	e.mu.Lock()
	now := e.opt.Clock.Now()
	var old []*session
	for key, s := range e.dialed {
		if s.idle(now) > e.opt.Idle && !e.node.Busy(s) {
			delete(e.dialed, key) // so that nobody takes it up again
			old = append(old, s)
		}
	}
	e.mu.Unlock()
	for _, s := range old {
		s.lose(errIdle)
	}
}

var errIdle = errors.New("idle")

// Link implements transfer.Dialer: the session with peer, dialed if there is none.
func (e *Endpoint) Link(peer engine.Peer) (transfer.Link, error) {
	key := dialKey{peer.Transfer, string(peer.ID), uint64(peer.Epoch)}
	e.mu.Lock()
	if s := e.dialed[key]; s != nil {
		s.touch()
		e.mu.Unlock()
		return s, nil
	}
	if e.ctx.Err() != nil {
		e.mu.Unlock()
		return nil, transfer.Failure(transfer.ReasonClosed, nil)
	}
	full := len(e.dialed) >= e.opt.MaxSessions
	e.mu.Unlock()
	if full && !e.makeRoom() {
		return nil, transfer.Failure(transfer.ReasonBusy, fmt.Errorf("%d sessions", e.opt.MaxSessions))
	}
	s := newSession(e, peer, randomNumber())
	e.mu.Lock()
	defer e.mu.Unlock()
	if other := e.dialed[key]; other != nil {
		other.touch()
		return other, nil
	}
	if e.ctx.Err() != nil {
		return nil, transfer.Failure(transfer.ReasonClosed, nil)
	}
	e.dialed[key] = s
	s.forget = func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.dialed[key] == s {
			delete(e.dialed, key)
		}
	}
	e.wg.Go(s.dial)
	return s, nil
}

// makeRoom ends the dialed session that has been idle longest.
func (e *Endpoint) makeRoom() bool {
	e.mu.Lock()
	now := e.opt.Clock.Now()
	var oldest *session
	var at dialKey
	for key, s := range e.dialed {
		if !e.node.Busy(s) && (oldest == nil || s.idle(now) > oldest.idle(now)) {
			oldest, at = s, key
		}
	}
	if oldest != nil {
		delete(e.dialed, at)
	}
	e.mu.Unlock()
	if oldest == nil {
		return false
	}
	oldest.lose(errIdle)
	return true
}

// accept takes connections until the endpoint closes.
func (e *Endpoint) accept() {
	for {
		conn, err := e.listen.Accept()
		if err != nil {
			if e.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			e.pause() // out of descriptors, most likely: some must be freed first
			continue
		}
		if e.opt.TLS != nil {
			conn = tls.Server(conn, e.opt.TLS)
		}
		if !e.admit(conn) {
			_ = conn.Close()
			continue
		}
		e.wg.Go(func() { e.serve(conn) })
	}
}

func (e *Endpoint) pause() {
	timer := e.opt.Clock.NewTimer(10 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-e.ctx.Done():
	}
}

// admit bounds the connections that have not said who they are.
func (e *Endpoint) admit(conn net.Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.greeting) >= e.opt.MaxSessions || e.ctx.Err() != nil {
		return false
	}
	e.greeting[conn] = struct{}{}
	return true
}

// serve greets an accepted connection and runs it as a stream of its session.
func (e *Endpoint) serve(conn net.Conn) {
	st, err := e.open(conn)
	var s *session
	if err == nil {
		s, err = e.welcome(st)
	}
	e.mu.Lock()
	delete(e.greeting, conn)
	e.mu.Unlock()
	if err != nil {
		_ = conn.Close()
		return
	}
	s.run(st)
}
