package h1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
)

// Config bounds a [Client]. Zero fields take their defaults.
type Config struct {
	// Connect bounds making a connection; default 2 s.
	Connect time.Duration
	// Idle is how long an unused connection is kept; default 4 s, because common
	// servers close theirs after 5.
	Idle time.Duration
	// MaxIdle bounds the unused connections kept; default 1024.
	MaxIdle int
}

func (c *Config) defaults() {
	if c.Connect == 0 {
		c.Connect = 2 * time.Second
	}
	if c.Idle == 0 {
		c.Idle = 4 * time.Second
	}
	if c.MaxIdle == 0 {
		c.MaxIdle = 1024
	}
}

// Client calls the server at one address. It is safe for concurrent use.
type Client struct {
	addr     string
	cfg      Config
	dialer   net.Dialer
	crossing time.Duration

	mu     sync.Mutex
	idle   []*conn // the most recently used last
	reaper *time.Timer
	closed bool
}

// New is a client of the server at addr, host:port. Nothing is dialled yet.
func New(addr string, c Config) *Client {
	c.defaults()
	return &Client{addr: addr, cfg: c, crossing: crossing, dialer: net.Dialer{Timeout: c.Connect, KeepAlive: 15 * time.Second}}
}

// crossing is how late the news may come that the server had closed a used
// connection before the request reached it: some round trips. A connection that
// ends later was open, and the engine may have died of the request.
const crossing = 500 * time.Millisecond

// Request is a POST. Head holds the header lines after Host and Content-Length,
// each ending in CRLF, without the empty line.
type Request struct {
	Target string // path and query
	Host   string
	Head   []byte
	Body   []byte
}

// Post sends r and returns when the response's head has been read. Cancelling
// ctx, then or later, closes the connection, which is how an engine learns of
// it. Errors wrap engine.ErrConnect (no connection), ctx's error, or
// engine.ErrBroken (the engine may have begun).
func (c *Client) Post(ctx context.Context, r *Request) (*Response, error) {
	for fresh := false; ; {
		cn, reused, err := c.take(ctx, fresh)
		if err != nil {
			return nil, err
		}
		sent := time.Now()
		resp, err := cn.do(ctx, r, reused)
		if err == nil {
			return resp, nil
		}
		stale := errors.Is(err, errStale)
		untouched := stale || cn.silent && time.Since(sent) < c.crossing
		// What left once may have arrived: it leaves once more at most.
		fresh = fresh || !stale
		cn.close()
		if cause := ctx.Err(); cause != nil {
			return nil, fmt.Errorf("%w: %w", cause, err)
		}
		if !reused || !untouched {
			return nil, fmt.Errorf("%w: %w", engine.ErrBroken, err)
		}
	}
}

// take is an idle connection that still seems open, or else, or if it has to be
// fresh, a new one.
func (c *Client) take(ctx context.Context, fresh bool) (cn *conn, reused bool, err error) {
	for !fresh {
		cn := c.pop()
		if cn == nil {
			break
		}
		if cn.usable() {
			return cn, true, nil
		}
		cn.close()
	}
	raw, err := c.dialer.DialContext(ctx, "tcp", c.addr) // TCP_NODELAY is Go's default
	if err != nil {
		if cause := ctx.Err(); cause != nil {
			return nil, false, fmt.Errorf("%w: %w", cause, err)
		}
		return nil, false, fmt.Errorf("%w: %w", engine.ErrConnect, err)
	}
	return newConn(c, raw.(*net.TCPConn)), false, nil //nolint:forcetypeassert // what "tcp" dials
}

func (c *Client) pop() *conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.idle)
	if n == 0 {
		return nil
	}
	cn := c.idle[n-1]
	c.idle[n-1] = nil
	c.idle = c.idle[:n-1]
	return cn
}

// give takes a connection back whose response was read to its end.
func (c *Client) give(cn *conn) {
	cn.since = time.Now()
	c.mu.Lock()
	if c.closed || len(c.idle) >= c.cfg.MaxIdle {
		c.mu.Unlock()
		cn.close()
		return
	}
	c.idle = append(c.idle, cn)
	if c.reaper == nil {
		c.reaper = time.AfterFunc(c.cfg.Idle, c.reap)
	}
	c.mu.Unlock()
}

// reap closes connections unused for too long, the oldest first in the stack.
func (c *Client) reap() {
	c.mu.Lock()
	cut, now := 0, time.Now()
	for cut < len(c.idle) && now.Sub(c.idle[cut].since) >= c.cfg.Idle {
		cut++
	}
	old := append([]*conn(nil), c.idle[:cut]...)
	c.idle = append(c.idle[:0], c.idle[cut:]...)
	c.reaper = nil
	if len(c.idle) > 0 && !c.closed {
		c.reaper = time.AfterFunc(max(c.cfg.Idle-now.Sub(c.idle[0].since), time.Millisecond), c.reap)
	}
	c.mu.Unlock()
	for _, cn := range old {
		cn.close()
	}
}

// Close closes the idle connections; running calls are not disturbed, and their
// connections are closed when they end.
func (c *Client) Close() {
	c.mu.Lock()
	old := c.idle
	c.idle, c.closed = nil, true
	if c.reaper != nil {
		c.reaper.Stop()
	}
	c.mu.Unlock()
	for _, cn := range old {
		cn.close()
	}
}

// conn is one connection. It belongs to one call at a time.
type conn struct {
	client *Client
	raw    *socket
	in     *bufio.Reader // of the connection, by way of Read
	since  time.Time     // when it became idle
	head   []byte        // scratch for the request's head
	silent bool          // no byte of the current response has come
	call   exchange
}

func newConn(c *Client, raw *net.TCPConn) *conn {
	cn := &conn{client: c, raw: newSocket(raw)}
	cn.call.bind(cn.raw)
	cn.in = bufio.NewReaderSize(cn, 4<<10)
	return cn
}

func (cn *conn) close() { _ = cn.raw.Close() }

// Read reads the connection. The first read of a response sends the request,
// if it is small: see exchange.
func (cn *conn) Read(p []byte) (int, error) {
	if cn.call.waits() {
		return cn.call.run(p)
	}
	return cn.raw.Read(p)
}

// usable reports whether an idle connection may still be open. What is not known
// before a request is sent, the exchange finds out.
func (cn *conn) usable() bool {
	return time.Since(cn.since) < cn.client.cfg.Idle && cn.in.Buffered() == 0
}

// do sends r and reads the response's head. reused says that the connection has
// served before.
func (cn *conn) do(ctx context.Context, r *Request, reused bool) (*Response, error) {
	// A deadline in the past wakes whatever read or write is going on.
	stop := context.AfterFunc(ctx, func() { _ = cn.raw.SetDeadline(time.Unix(1, 0)) })
	cn.silent = true
	if err := cn.send(r, reused); err != nil {
		stop()
		return nil, fmt.Errorf("send request: %w", err)
	}
	resp := &Response{conn: cn, ctx: ctx, stop: stop}
	for {
		if err := resp.readHead(cn); err != nil {
			stop()
			return nil, fmt.Errorf("read response: %w", err)
		}
		if resp.Status >= 200 {
			return resp, nil
		}
		if resp.Status == 101 {
			stop()
			return nil, fmt.Errorf("%w: status 101", ErrProtocol)
		}
	}
}

// smallBody is copied behind the head, to leave in one write without gathering.
const smallBody = 16 << 10

func (cn *conn) send(r *Request, reused bool) error {
	b := cn.head[:0]
	b = append(b, "POST "...)
	b = append(b, r.Target...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, r.Host...)
	b = append(b, "\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(len(r.Body)), 10)
	b = append(b, "\r\n"...)
	b = append(b, r.Head...)
	b = append(b, "\r\n"...)
	if len(r.Body) <= smallBody {
		b = append(b, r.Body...)
		cn.call.begin(b, reused)
		if cn.head = b[:0]; cap(b) > smallBody/4 {
			cn.head = nil // a stream may hold the connection for long
		}
		return nil
	}
	cn.head = b[:0]
	if reused && !peekSilent(cn.raw) {
		return errStale
	}
	parts := net.Buffers{b, r.Body}
	_, err := parts.WriteTo(cn.raw.TCPConn)
	return cn.answered(err)
}

// errStale means that a used connection was closed, or spoke, before anything was
// sent over it.
var errStale = errors.New("h1: the idle connection had ended")

// answered forgives a failed write when the server has already answered: it may
// refuse a body without reading it.
func (cn *conn) answered(err error) error {
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	if _, peekErr := cn.in.Peek(1); peekErr != nil {
		return err
	}
	return nil
}

// broken is the error for a response that ended early: ctx's own when the caller
// left.
func broken(ctx context.Context, err error) error {
	if cause := ctx.Err(); cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %w", engine.ErrBroken, err)
}
