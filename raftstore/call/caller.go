package call

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/raftstore/transport"
)

var (
	// ErrUnreachable means that the peer could not be connected to, or that too many
	// calls to it are under way: it was not asked.
	ErrUnreachable = errors.New("node cannot be reached")
	// ErrNotServed means that the peer does not know the protocol, or is about to
	// stop: it was not asked, and may be by gRPC.
	ErrNotServed = errors.New("calls are not served")
	// ErrBusy means that the peer refused the call unread, because too many of this
	// node's are under way there.
	ErrBusy = errors.New("the peer is busy")
	// ErrRefused means that the call was not for that peer. Nothing happened.
	ErrRefused = errors.New("the peer refused the call")
	// ErrLost means that no answer came: the peer may have done what was asked.
	ErrLost = errors.New("no answer came")
	// ErrClosed means that the caller was closed: nothing was asked.
	ErrClosed = errors.New("caller is closed")
)

const (
	// longest bounds a call.
	longest = 10 * time.Second
	// underway bounds the calls of one peer to another that are not answered yet.
	underway = 256
	// firstPause, doubled each time up to longestPause, is how long a peer that could
	// not be connected to is left alone; a leader is missed early.
	firstPause   = 50 * time.Millisecond
	longestPause = time.Second
	// oldPause is how long a peer that does not serve calls is not asked again whether
	// it does.
	oldPause = 10 * time.Second
	// attempts bounds the connections that one call tries: the first may have ended
	// unnoticed.
	attempts = 3
	// idleAfter is how long a connection that nobody uses is kept.
	idleAfter = 5 * time.Minute
)

// Target is a node, and where it is.
type Target struct{ ID, Addr string }

// Request is what is asked.
type Request struct {
	Kind    Kind
	Cluster string // the caller's, 255 bytes at most
	Body    []byte // 4 MiB at most
}

// Caller makes calls to peers, over one connection to each. It is safe for
// concurrent use.
type Caller struct {
	port   *transport.Port
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup // of dials and connections

	mu     sync.Mutex
	links  map[Target]*link
	closed bool
}

// link is what is known of a peer. The caller's lock guards it.
type link struct {
	conn    *clientConn
	dialing chan struct{} // closed at the end of the dial under way; nil: there is none
	err     error         // the last dial's
	again   time.Time     // not dialled before
	pause   time.Duration
	used    time.Time
}

// NewCaller is a caller that dials over the port. It must be closed.
func NewCaller(port *transport.Port) *Caller {
	c := &Caller{port: port, links: map[Target]*link{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Call asks a node and waits for its answer, until ctx ends or 10 s have passed.
// Errors wrap ErrUnreachable, ErrNotServed, ErrBusy, ErrRefused or ErrClosed when
// nothing has happened, beside ctx's if that was why; and ErrLost when that is not
// known. The body that comes back is the caller's.
func (c *Caller) Call(ctx context.Context, to Target, q Request) ([]byte, error) {
	if len(q.Cluster) > 255 || len(q.Body) > maxBody {
		return nil, fmt.Errorf("%w: %w: %d bytes", ErrRefused, errTooLarge, len(q.Body))
	}
	for range attempts {
		conn, err := c.connect(ctx, to)
		if err != nil {
			return nil, err
		}
		body, err := conn.call(ctx, q)
		if !errors.Is(err, errEnded) {
			return body, err
		}
		c.drop(to, conn) // it ended before it was asked
	}
	return nil, fmt.Errorf("%w: connections to %s at %s end as soon as they begin", ErrUnreachable, to.ID, to.Addr)
}

// connect gives the connection to a node, once there is one.
func (c *Caller) connect(ctx context.Context, to Target) (*clientConn, error) {
	if to.Addr == "" {
		return nil, fmt.Errorf("%w: nobody knows where %q is", ErrUnreachable, to.ID)
	}
	for {
		conn, dialing, err := c.look(to)
		if conn != nil || err != nil {
			return conn, err
		}
		select {
		case <-dialing:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %s at %s: %w", ErrUnreachable, to.ID, to.Addr, ctx.Err())
		}
	}
}

// look gives a connection, or what to wait for, or why there is none.
func (c *Caller) look(to Target) (*clientConn, <-chan struct{}, error) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, ErrClosed
	}
	l := c.links[to]
	if l == nil {
		c.dropIdle(now)
		l = &link{}
		c.links[to] = l
	}
	l.used = now
	switch {
	case l.conn != nil:
		return l.conn, nil, nil
	case l.dialing != nil:
		return nil, l.dialing, nil
	case now.Before(l.again):
		return nil, nil, l.err
	}
	l.dialing = make(chan struct{})
	c.tasks.Go(func() { c.dial(to, l) })
	return nil, l.dialing, nil
}

// dial connects and notes what came of it.
func (c *Caller) dial(to Target, l *link) {
	raw, err := c.port.Dial(c.ctx, to.ID, to.Addr, transport.ProtoCall)
	c.mu.Lock()
	defer c.mu.Unlock()
	close(l.dialing)
	l.dialing = nil
	switch {
	case err == nil && c.closed:
		_ = raw.Close()
	case err == nil:
		conn := openConn(raw)
		l.conn, l.err, l.pause = conn, nil, 0
		c.tasks.Go(func() { conn.run(c.ctx); c.drop(to, conn) })
	case errors.Is(err, transport.ErrNoProtocol):
		l.err, l.again = fmt.Errorf("%w: %w", ErrNotServed, err), time.Now().Add(oldPause)
	default:
		l.pause = min(max(2*l.pause, firstPause), longestPause)
		l.err, l.again = fmt.Errorf("%w: %w", ErrUnreachable, err), time.Now().Add(l.pause)
	}
}

// drop forgets a connection that has ended.
func (c *Caller) drop(to Target, conn *clientConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.links[to]; l != nil && l.conn == conn {
		l.conn = nil
	}
}

// dropIdle forgets peers that were not spoken to for long. It is called with each
// new one, so their number is bounded by who was spoken to lately.
func (c *Caller) dropIdle(now time.Time) {
	for to, l := range c.links {
		if l.dialing == nil && now.Sub(l.used) > idleAfter {
			if l.conn != nil {
				l.conn.end(errIdle)
			}
			delete(c.links, to)
		}
	}
}

// Close ends all connections and waits for their goroutines. Calls under way are
// lost.
func (c *Caller) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.tasks.Wait()
}
