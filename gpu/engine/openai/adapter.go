package openai

import (
	"context"
	"fmt"
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
	// Repeatable says that the engines' calls have no effect but their answers. It
	// is nothing that can be known of any engine: tools may run inside.
	Repeatable bool
	// Request appends header lines to head, by [AppendHeader], and returns it; may
	// be nil.
	Request func(head []byte, w *fleet.Worker, c *engine.Call) []byte
	// Response reads headers of an answer; header returns "" for an absent one.
	// May be nil.
	Response func(header func(name string) string, r *engine.Response)
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

// Repeatable is the configuration's. See [engine.Repeater].
func (a *Adapter) Repeatable() bool { return a.cfg.Repeatable }

// Close closes idle connections. Running calls are not disturbed.
func (a *Adapter) Close() { a.pools.close() }

// Do sends the call to w.
func (a *Adapter) Do(ctx context.Context, w *fleet.Worker, call *engine.Call) (*engine.Response, error) {
	p, err := a.pools.get(w, a.newPool)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", engine.ErrConnect, err)
	}
	head := a.head(w, call)
	if p.transport != nil {
		return a.doTLS(ctx, p, head, call)
	}
	return a.doPlain(ctx, p, head, call)
}

// head is the header lines of a call, each ending in CRLF.
func (a *Adapter) head(w *fleet.Worker, call *engine.Call) []byte {
	head := make([]byte, 0, 256)
	head = append(head, "Content-Type: application/json\r\nUser-Agent: yardmaster\r\n"...)
	if call.Stream {
		head = append(head, "Accept: text/event-stream\r\n"...)
	} else {
		head = append(head, "Accept: application/json\r\n"...)
	}
	head = AppendHeader(head, engine.HeaderRequestID, call.RequestID)
	if call.Trace != "" {
		head = AppendHeader(head, engine.HeaderTrace, call.Trace)
	}
	if call.TokenIDs && call.Leg != engine.Prefill {
		head = AppendHeader(head, engine.HeaderContinue, engine.ContinueIDs)
	}
	if a.cfg.Request != nil {
		head = a.cfg.Request(head, w, call)
	}
	return head
}

// AppendHeader appends one header line. Control characters in value, which
// could begin another line, become spaces. name is a constant of ours.
func AppendHeader(head []byte, name, value string) []byte {
	head = append(head, name...)
	head = append(head, ": "...)
	for i := range len(value) {
		c := value[i]
		if c < ' ' || c == 0x7f {
			c = ' '
		}
		head = append(head, c)
	}
	return append(head, "\r\n"...)
}

// answer is the part of a response that engines of every transport share.
func (a *Adapter) answer(status int, header func(string) string) *engine.Response {
	out := &engine.Response{
		Status: status, ContentType: header("Content-Type"), Continues: header(engine.HeaderContinue),
	}
	if status >= 300 {
		out.RetryAfter = header("Retry-After")
	}
	if a.cfg.Response != nil {
		a.cfg.Response(header, out)
	}
	return out
}
