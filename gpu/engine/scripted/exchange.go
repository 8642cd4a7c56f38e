package scripted

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/yardmaster/yardmaster/core/engine"
)

// exchange is one request and its answer.
type exchange struct {
	inc    *incarnation
	w      http.ResponseWriter
	r      *http.Request
	ctx    context.Context // the exchange is the request's scope
	cancel context.CancelFunc
	body   []byte
	facts  facts
	rec    *Record
	act    Action
	out    output
	stage  string // where the exchange is, for its record
	after  []func()
}

// facts are what rules match on besides the request line.
type facts struct {
	Model  string `json:"model"`
	Stream bool   `json:"stream"`
	KV     *struct {
		Decode  bool `json:"do_remote_decode"`
		Prefill bool `json:"do_remote_prefill"`
	} `json:"kv_transfer_params"`
	leg engine.Leg
}

func newExchange(inc *incarnation, w http.ResponseWriter, r *http.Request) (*exchange, bool) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(inc.e.opts.MaxBody)))
	_ = control.SetReadDeadline(time.Time{})
	x := &exchange{inc: inc, w: w, r: r, body: body, stage: "writing"}
	x.ctx, x.cancel = context.WithCancel(r.Context())
	x.out = output{x: x, control: control}
	x.rec = inc.e.record.begin(r, body, inc.number)
	if err == nil {
		return x, true
	}
	defer x.cancel()
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		_ = x.fail(http.StatusRequestEntityTooLarge, "RequestEntityTooLarge",
			"request body exceeds "+strconv.FormatInt(tooLarge.Limit, 10)+" bytes", "")
		x.engine().record.end(x.rec, Served, "")
		return nil, false
	}
	x.engine().record.end(x.rec, Aborted, "reading")
	return nil, false
}

func (x *exchange) engine() *Engine { return x.inc.e }

// sleep waits for d on the engine's clock; false when the client left.
func (x *exchange) sleep(d time.Duration) bool { return sleep(x.ctx, x.engine().opts.Clock, d) }

// run answers the request and closes its record.
func (x *exchange) run() {
	defer x.cancel()
	x.readFacts()
	var rule string
	x.act, rule = x.engine().play.Load().match(x)
	x.engine().record.update(x.rec, func(r *Record) { r.Rule = rule })
	err := x.answer()
	if err == nil {
		err = x.out.end()
	}
	x.engine().record.end(x.rec, x.outcome(err), x.endStage(err))
	for _, f := range x.after {
		f()
	}
	x.out.release()
	if err != nil && !errors.Is(err, errClosed) && x.out.conn == nil {
		panic(http.ErrAbortHandler) // the response must not end as if complete
	}
}

func (x *exchange) readFacts() {
	_ = json.Unmarshal(x.body, &x.facts) // not every request is JSON; rules then see nothing
	switch x.r.Header.Get(engine.HeaderLeg) {
	case engine.Prefill.String():
		x.facts.leg = engine.Prefill
	case engine.Decode.String():
		x.facts.leg = engine.Decode
	default:
		if kv := x.facts.KV; kv != nil && kv.Decode {
			x.facts.leg = engine.Prefill
		} else if kv != nil && kv.Prefill {
			x.facts.leg = engine.Decode
		}
	}
}

func (x *exchange) outcome(err error) Outcome {
	switch {
	case err == nil:
		return Served
	case errors.Is(err, errCut) || errors.Is(err, errClosed):
		return Broken
	case x.inc.isStopped():
		return Stopped
	default:
		return Aborted
	}
}

func (x *exchange) endStage(err error) string {
	if err == nil {
		return ""
	}
	return x.stage
}

// answer does what the rule says, or what the route does.
func (x *exchange) answer() error {
	if d := x.act.Delay.D(); d > 0 {
		x.stage = "delay"
		if !x.sleep(d) {
			return x.ctx.Err()
		}
		x.stage = "writing"
	}
	switch a := &x.act; {
	case a.Die != nil:
		x.stage = "dying"
		x.engine().dieSoon(x.ctx, a.Die)
		<-x.ctx.Done()
		return x.ctx.Err()
	case a.Hang != nil:
		return x.hang(a.Hang)
	case a.Raw != nil:
		if err := x.out.hijack(); err != nil {
			return err
		}
		return x.writePayload(a.Raw)
	case a.Respond != nil:
		return x.respond(a.Respond)
	case a.Error != nil:
		return x.scriptedError(a.Error)
	}
	return x.route()
}

// hang goes silent, before or after the headers.
func (x *exchange) hang(h *Hang) error {
	if h.When == "after_headers" {
		if err := x.startStream(); err != nil {
			return err
		}
	}
	x.stage = "hang"
	return x.out.cut(&Cut{How: "hang", For: h.For})
}

// startStream sends the headers of an event stream.
func (x *exchange) startStream() error {
	h := x.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	x.out.header(http.StatusOK)
	return x.out.flush()
}

func (x *exchange) respond(a *Respond) error {
	for k, v := range a.Headers {
		x.w.Header().Set(k, v)
	}
	x.out.header(orDefault(a.Status, http.StatusOK))
	if err := x.out.flush(); err != nil {
		return err
	}
	return x.writePayload(&a.Payload)
}

func (x *exchange) writePayload(p *Payload) error {
	for _, part := range p.parts() {
		for range max(part.repeat, 1) {
			if !x.sleep(part.delay) {
				return x.ctx.Err()
			}
			if err := x.out.write(part.bytes); err != nil {
				return err
			}
		}
	}
	return nil
}

// json answers with v.
func (x *exchange) json(status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return x.jsonBytes(status, b)
}

func (x *exchange) jsonBytes(status int, b []byte) error {
	x.w.Header().Set("Content-Type", "application/json")
	x.w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	x.out.header(status)
	return x.out.write(b)
}

// errorBody is vLLM's error object.
type errorBody struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

// fail answers with an engine's error.
func (x *exchange) fail(status int, kind, message, param string) error {
	body := errorBody{Message: message, Type: kind, Code: status}
	if param != "" {
		body.Param = &param
	}
	return x.json(status, map[string]errorBody{"error": body})
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}
