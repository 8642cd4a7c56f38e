package openai

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
)

// Config sets up an adapter. Zero fields take their defaults.
type Config struct {
	// Connect bounds making a connection; default 2 s.
	Connect time.Duration
	// Idle is how long an unused connection is kept; default 4 s, because common
	// servers close theirs after 5.
	Idle time.Duration
	// Request adds headers to a call; may be nil.
	Request func(h http.Header, w *fleet.Worker, c *engine.Call)
	// Response reads headers of an answer; may be nil.
	Response func(h http.Header, r *engine.Response)
}

// Adapter is an engine.Adapter over HTTP/1.1. It is safe for concurrent use.
type Adapter struct {
	cfg   Config
	pools pools
}

// New makes an adapter. Close gives its connections back.
func New(c Config) *Adapter {
	if c.Connect == 0 {
		c.Connect = 2 * time.Second
	}
	if c.Idle == 0 {
		c.Idle = 4 * time.Second
	}
	return &Adapter{cfg: c, pools: pools{byID: map[fleet.WorkerID]*pool{}}}
}

// Close closes idle connections. Running calls are not disturbed.
func (a *Adapter) Close() { a.pools.close() }

// Do sends the call to w.
func (a *Adapter) Do(ctx context.Context, w *fleet.Worker, call *engine.Call) (*engine.Response, error) {
	p, err := a.pools.get(w, a.newPool)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", engine.ErrConnect, err)
	}
	resp, err := p.transport.RoundTrip(a.request(ctx, p.base, w, call)) //nolint:bodyclose // the caller closes Response.Body
	if err != nil {
		return nil, classify(ctx, err)
	}
	out := &engine.Response{
		Status:      resp.StatusCode,
		ContentType: resp.Header.Get("Content-Type"),
		RetryAfter:  resp.Header.Get("Retry-After"),
		Body:        &body{ctx: ctx, ReadCloser: resp.Body},
	}
	if a.cfg.Response != nil {
		a.cfg.Response(resp.Header, out)
	}
	return out, nil
}

func (a *Adapter) request(ctx context.Context, base *url.URL, w *fleet.Worker, call *engine.Call) *http.Request {
	target := *base
	target.Path = base.Path + call.Path
	accept := "application/json"
	if call.Stream {
		accept = "text/event-stream"
	}
	h := http.Header{
		"Content-Type":         {"application/json"},
		"Accept":               {accept},
		"User-Agent":           {"yardmaster"},
		engine.HeaderRequestID: {call.RequestID},
	}
	if a.cfg.Request != nil {
		a.cfg.Request(h, w, call)
	}
	req := &http.Request{
		Method: http.MethodPost, URL: &target, Host: base.Host, Header: h,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		ContentLength: int64(len(call.Body)),
		GetBody: func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(call.Body)), nil
		},
	}
	if len(call.Body) > 0 {
		req.Body = io.NopCloser(bytes.NewReader(call.Body))
	}
	return req.WithContext(ctx)
}

// classify says what an error means for the call. Cancellation goes first: it
// looks like all the others.
func classify(ctx context.Context, err error) error {
	if cause := ctx.Err(); cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	if dial, ok := errors.AsType[*dialError](err); ok {
		return fmt.Errorf("%w: %w", engine.ErrConnect, dial.err)
	}
	return fmt.Errorf("%w: %w", engine.ErrBroken, err)
}

// dialError marks an error of making a connection, over which nothing of the
// call can have gone.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

func (a *Adapter) newPool(w *fleet.Worker) (*pool, error) {
	base, err := url.Parse(w.URL)
	if err != nil {
		return nil, fmt.Errorf("openai: worker %q: %w", w.ID, err)
	}
	if base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return nil, fmt.Errorf("openai: worker %q: %q is not an http URL", w.ID, base.Redacted())
	}
	dialer := &net.Dialer{Timeout: a.cfg.Connect, KeepAlive: 15 * time.Second}
	return &pool{base: base, epoch: w.Epoch, url: w.URL, transport: &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr) // TCP_NODELAY is Go's default
			if err != nil {
				return nil, &dialError{err}
			}
			return conn, nil
		},
		TLSHandshakeTimeout:    a.cfg.Connect,
		DisableCompression:     true,
		MaxIdleConns:           0, // bounded per host, and there is one
		MaxIdleConnsPerHost:    1024,
		IdleConnTimeout:        a.cfg.Idle,
		MaxResponseHeaderBytes: 64 << 10,
		Protocols:              http1(),
	}}, nil
}

func http1() *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(true)
	return &p
}

// body tells an early end from a proper one.
type body struct {
	ctx context.Context //nolint:containedctx // the life of the call this body belongs to
	io.ReadCloser
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = classify(b.ctx, err)
	}
	return n, err
}
