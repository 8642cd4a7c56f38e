package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/yardmaster/yardmaster/raftstore/transport"
)

var (
	// ErrUnreachable means that a node could not be connected to: it was not asked.
	ErrUnreachable = errors.New("node cannot be reached")
	// ErrPoolClosed means that the pool was closed.
	ErrPoolClosed = errors.New("pool of connections is closed")
)

// Pool keeps a connection to each node that is spoken to. It is safe for
// concurrent use.
type Pool struct {
	port    *transport.Port
	options []grpc.DialOption

	mu     sync.Mutex
	conns  map[string]*link // by id and address
	closed bool
}

type link struct {
	conn *grpc.ClientConn
	used time.Time
	// why is what the last attempt to connect failed by; gRPC only says that it
	// did.
	why atomic.Pointer[error]
}

// unreachable is why the node of that id at addr could not be connected to.
func (l *link) unreachable(id, addr string) error {
	if why := l.why.Load(); why != nil {
		return fmt.Errorf("%w: %w", ErrUnreachable, *why)
	}
	return fmt.Errorf("%w: %s at %s", ErrUnreachable, id, addr)
}

const (
	// maxMessage bounds a message, either way; an entry is the largest.
	maxMessage = 4 << 20
	// idleAfter is how long a connection that nobody uses is kept.
	idleAfter = 5 * time.Minute
)

// NewPool is a pool that dials over the port. The options are for its
// connections. The caller closes it.
func NewPool(port *transport.Port, options ...grpc.DialOption) *Pool {
	return &Pool{port: port, options: options, conns: map[string]*link{}}
}

// Client is a connection to the node of that id at addr, "" for whoever is
// there. It is ready to be used, so a call that fails may have arrived; an
// error here means that nothing was asked, and wraps ErrUnreachable or is
// ErrPoolClosed.
func (p *Pool) Client(ctx context.Context, id, addr string) (PeerClient, error) {
	l, err := p.link(id, addr)
	if err != nil {
		return nil, err
	}
	conn := l.conn
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if state == connectivity.TransientFailure {
			return nil, l.unreachable(id, addr)
		}
		if state == connectivity.Idle {
			conn.Connect()
		}
		if state == connectivity.Shutdown {
			return nil, ErrPoolClosed
		}
		if !conn.WaitForStateChange(ctx, state) {
			return nil, fmt.Errorf("%w: %w", l.unreachable(id, addr), ctx.Err())
		}
	}
	return NewPeerClient(conn), nil
}

func (p *Pool) link(id, addr string) (*link, error) {
	if addr == "" {
		return nil, fmt.Errorf("%w: nobody knows where %q is", ErrUnreachable, id)
	}
	key := id + "@" + addr
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrPoolClosed
	}
	if l := p.conns[key]; l != nil {
		l.used = now
		return l, nil
	}
	l := &link{used: now}
	options := append(transport.GRPCDialOptions(p.port, id, transport.ProtoPeer), p.options...)
	options = append(options, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := p.port.Dial(ctx, id, addr, transport.ProtoPeer)
		if err != nil {
			l.why.Store(&err)
			return nil, err
		}
		return conn, nil
	}))
	options = append(options, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
	var err error
	if l.conn, err = grpc.NewClient("passthrough:///"+addr, options...); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	p.conns[key] = l
	p.dropIdle(now)
	return l, nil
}

// dropIdle ends connections that have not been used for long. It is called with
// each new one, so the pool is bounded by who was spoken to lately.
func (p *Pool) dropIdle(now time.Time) {
	for key, l := range p.conns {
		if now.Sub(l.used) > idleAfter {
			_ = l.conn.Close()
			delete(p.conns, key)
		}
	}
}

// Close ends all connections; calls under way fail.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, l := range p.conns {
		_ = l.conn.Close()
	}
	clear(p.conns)
}
