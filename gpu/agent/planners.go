package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/yardmaster/yardmaster/core/wire/control"
	"github.com/yardmaster/yardmaster/core/wire/control/rpc"
)

// ErrMoved means that a feed was ended because the worker has gone over to
// another planner: the one of the feed did not answer any more.
var ErrMoved = errors.New("the worker went over to another planner")

// planners are the connections to all planners, made when first used. They are
// safe for concurrent use.
type planners struct {
	conns   []*grpc.ClientConn
	clients []rpc.ControlClient

	mu      sync.Mutex
	current int // the one that answered last
	// tenure ends when another becomes current, and what depends on it with it.
	tenure    context.Context
	endTenure context.CancelCauseFunc
}

func dial(cfg *Config) (*planners, error) {
	creds := insecure.NewCredentials()
	if cfg.TLS != nil {
		creds = credentials.NewTLS(cfg.TLS)
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithNoProxy(), // the planner is on the cluster's own network
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1 << 20)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			// The agent has its own pauses; these only bound how late a planner
			// that came back is noticed.
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: callTimeout,
		}),
	}
	p := &planners{}
	for _, addr := range cfg.Planners {
		conn, err := grpc.NewClient(addr, opts...)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("planner address %q: %w", addr, err), p.close())
		}
		p.conns = append(p.conns, conn)
		p.clients = append(p.clients, rpc.NewControlClient(conn))
	}
	p.begin(0)
	return p, nil
}

func (p *planners) len() int { return len(p.conns) }

// begin makes n current. The caller holds mu or is the only one.
func (p *planners) begin(n int) {
	p.current = n
	p.tenure, p.endTenure = context.WithCancelCause(context.Background())
}

// now is the current planner and its tenure.
func (p *planners) now() (int, context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current, p.tenure
}

// answered notes that planner n gave an answer.
func (p *planners) answered(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n != p.current {
		p.endTenure(ErrMoved)
		p.begin(n)
	}
}

// each calls f with one planner after the other, beginning with the one that
// answered last, until one gives an answer that another would give too. Each
// call has the timeout.
func (p *planners) each(ctx context.Context, timeout time.Duration, f func(context.Context, rpc.ControlClient) error) error {
	first, _ := p.now()
	var errs []error
	for i := range p.clients {
		n := (first + i) % len(p.clients)
		err := attempt(ctx, timeout, p.clients[n], f)
		if err == nil || definite(err) {
			p.answered(n)
			return err
		}
		errs = append(errs, &plannerError{p.conns[n].Target(), err})
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// feed opens a stream at the planner that answered last, for as long as it is
// that, or until ctx ends.
func (p *planners) feed(ctx context.Context) (rpc.Control_FeedClient, error) {
	n, tenure := p.now()
	own, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(tenure, func() { cancel(ErrMoved) }) //nolint:contextcheck // a second end, beside ctx's
	context.AfterFunc(ctx, func() { stop() })
	stream, err := p.clients[n].Feed(own)
	if err != nil {
		stop()
		cancel(err)
		return nil, &plannerError{p.conns[n].Target(), err}
	}
	return feed{stream, p.conns[n].Target(), own}, nil
}

// feed is a stream whose errors name its planner, or say that it was left.
type feed struct {
	rpc.Control_FeedClient
	target string
	own    context.Context //nolint:containedctx // of the stream, whose end it explains
}

// Recv is the stream's.
func (f feed) Recv() (*control.FeedResponse, error) {
	m, err := f.Control_FeedClient.Recv()
	if err != nil && errors.Is(context.Cause(f.own), ErrMoved) {
		err = ErrMoved
	}
	if err != nil {
		err = &plannerError{f.target, err}
	}
	return m, err
}

func attempt(ctx context.Context, timeout time.Duration, c rpc.ControlClient, f func(context.Context, rpc.ControlClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return f(ctx, c)
}

// plannerError is a failed call as an operator reads it: without the layers that
// carried the cause here. They stay in the chain.
type plannerError struct {
	target string
	err    error
}

func (e *plannerError) Unwrap() error { return e.err }

func (e *plannerError) Error() string {
	text := status.Convert(e.err).Message()
	_, inner, refused := strings.Cut(text, "connection error: desc = ")
	if !refused {
		return "planner " + e.target + ": " + text // its own words, or a deadline's
	}
	if plain, err := strconv.Unquote(inner); err == nil {
		inner = plain
	}
	for _, layer := range []string{"transport: ", "Error while dialing: ", "dial tcp ", e.target + ": ", "connect: "} {
		inner = strings.TrimPrefix(inner, layer)
	}
	return "planner " + e.target + " unreachable: " + inner
}

// definite reports whether err is the leader's own answer.
func definite(err error) bool {
	return slices.Contains([]codes.Code{
		codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.ResourceExhausted, codes.FailedPrecondition,
	}, status.Code(err))
}

func (p *planners) close() error {
	p.mu.Lock()
	if p.endTenure != nil { // nil where dialling failed
		p.endTenure(ErrMoved)
	}
	p.mu.Unlock()
	var errs []error
	for _, c := range p.conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
