package openai

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
)

// doTLS calls an https:// engine, over net/http.
func (a *Adapter) doTLS(ctx context.Context, p *pool, head []byte, call *engine.Call) (*engine.Response, error) {
	resp, err := p.transport.RoundTrip(p.request(ctx, head, call)) //nolint:bodyclose // the caller closes Response.Body
	if err != nil {
		return nil, classify(ctx, err)
	}
	out := a.answer(resp.StatusCode, resp.Header.Get)
	out.Body = &body{ctx: ctx, ReadCloser: resp.Body}
	return out, nil
}

func (p *pool) request(ctx context.Context, head []byte, call *engine.Call) *http.Request {
	target := *p.base
	target.Path = p.base.Path + call.Path
	req := &http.Request{
		Method: http.MethodPost, URL: &target, Host: p.base.Host, Header: headerOf(head),
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

// headerOf is the lines of head as net/http wants them.
func headerOf(head []byte) http.Header {
	h := http.Header{}
	for line := range bytes.SplitSeq(head, []byte("\r\n")) {
		if name, value, ok := bytes.Cut(line, []byte(": ")); ok {
			h[textproto.CanonicalMIMEHeaderKey(string(name))] = []string{string(value)}
		}
	}
	return h
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

func (a *Adapter) newTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: a.cfg.Connect, KeepAlive: 15 * time.Second}
	var http1 http.Protocols
	http1.SetHTTP1(true)
	return &http.Transport{
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
		Protocols:              &http1,
	}
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
