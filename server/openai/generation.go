package openai

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/wire/edge"
	"github.com/yardmaster/yardmaster/server/sse"
)

// generation handles the routes that engines serve. route is their name in
// metrics, path the engines' own.
func (a *API) generation(route, path string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id := Identify(w, r)
		life, err := a.deps.Dispatcher.Accept(route)
		if err != nil {
			WriteError(w, err)
			return
		}
		defer life.Close()
		tenant, highest, err := a.tenant(r)
		var req *edge.Request
		if err == nil {
			req, err = a.read(w, r, life)
		}
		if err != nil {
			outcome := life.Refuse(err)
			a.log(r, id, route, nil, &outcome)
			WriteError(w, err)
			return
		}
		answer := &answer{w: w, api: a, explain: a.explains(r)}
		whole := path == embeddings
		req.Stream = req.Stream && !whole
		outcome := life.Serve(r.Context(), &dispatch.Request{
			Request: req, ID: id, Path: path, Trace: trace(r), Whole: whole, Session: session(r, req), Wishes: wishes(r),
			Tenant: tenant, Class: min(class(r), highest),
		}, answer)
		a.log(r, id, route, req, &outcome)
		life.Close()
		answer.finish(&outcome)
	}
}

func (a *API) read(w http.ResponseWriter, r *http.Request, life *dispatch.Life) (*edge.Request, error) {
	body, err := a.readBody(w, r, life)
	if err != nil {
		return nil, err
	}
	req, err := edge.Parse(body, a.cfg.MaxDepth)
	if err != nil {
		return nil, err
	}
	if req.Stops > a.cfg.MaxStops {
		return nil, &errs.Error{
			Kind: errs.BadRequest, Param: "stop", Code: "too_many_stops",
			Client: fmt.Sprintf("more than %d stop strings", a.cfg.MaxStops),
		}
	}
	return req, nil
}

// trace is the client's trace context, if it is one: version, trace id, parent
// id and flags in hexadecimal.
func trace(r *http.Request) string {
	v := r.Header.Get(headerTrace)
	if len(v) < 55 || len(v) > 128 {
		return ""
	}
	for i := range len(v) {
		c := v[i]
		if c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return ""
		}
	}
	return v
}

// tenant is whose the request is, and the highest class that it may claim.
func (a *API) tenant(r *http.Request) (tenant string, highest admit.Class, err error) {
	if a.deps.Tenant == nil {
		return "", admit.Standard, nil
	}
	return a.deps.Tenant(r)
}

// class is how urgent the client says its request is. What is no class is none.
func class(r *http.Request) admit.Class {
	if v := r.Header[headerClass]; len(v) > 0 {
		c, _ := admit.ParseClass(v[0])
		return c
	}
	return admit.Standard
}

// session is what keeps a conversation together for policies: a header, or what the
// body says.
func session(r *http.Request, req *edge.Request) uint64 {
	for _, name := range sessionHeaders {
		if v := r.Header[name]; len(v) > 0 && v[0] != "" {
			return edge.Session(v[0])
		}
	}
	return req.Session
}

// wishes are the times that the client asks for by headers.
func wishes(r *http.Request) dispatch.Wishes {
	return dispatch.Wishes{First: wish(r, firstHeaders), Between: wish(r, betweenHeaders)}
}

// wish reads the first of some headers, in milliseconds. What is no time in
// (0, a day] is none.
func wish(r *http.Request, names [2]string) time.Duration {
	const longest = 24 * 60 * 60 * 1000
	for _, name := range names {
		if v := r.Header[name]; len(v) > 0 {
			if ms, err := strconv.ParseFloat(v[0], 64); err == nil && ms > 0 && ms <= longest {
				return time.Duration(ms * float64(time.Millisecond))
			}
		}
	}
	return 0
}

// answer is the dispatch.Sink of one response.
type answer struct {
	w       http.ResponseWriter
	api     *API
	explain bool
	head    dispatch.Head
	stream  *sse.Writer // nil when the answer is whole
}

// Begin opens the response. A whole answer's headers wait for its body, whose
// length they state.
func (s *answer) Begin(h dispatch.Head) error {
	s.head = h
	s.place(h.Placement)
	if !h.Stream {
		return nil
	}
	s.stream = sse.New(s.w, s.api.deps.Clock, s.api.cfg.Stream)
	return s.stream.Begin()
}

// Write delivers whole events, or the whole body.
func (s *answer) Write(p []byte) error {
	if s.stream != nil {
		return s.stream.Write(p)
	}
	h := s.w.Header()
	h["Content-Type"] = []string{s.head.ContentType}
	h["Content-Length"] = []string{strconv.Itoa(len(p))}
	if s.head.Status >= 400 {
		kind := edge.KindOf(s.head.Status)
		advise(h, kind, s.head.RetryAfter, s.head.NoRetry)
		h[headerReason] = []string{kind.String()}
	}
	s.w.WriteHeader(s.head.Status)
	_, err := s.w.Write(p)
	return err
}

func (s *answer) place(p *dispatch.Placement) {
	if s.explain && p != nil {
		s.w.Header()[headerPath] = []string{p.String()}
	}
}

// finish tells the client what it does not know yet. A response that has begun
// and is not complete is cut: it must not look like a whole one.
func (s *answer) finish(o *dispatch.Outcome) {
	if s.stream != nil {
		defer s.stream.Close()
	}
	switch {
	case o.Err == nil:
		return
	case !o.Begun:
		s.place(o.Placement)
		WriteError(s.w, o.Err)
		return
	case s.stream != nil && o.Err.Kind != errs.Canceled:
		_ = s.stream.Fail(o.Err) // the cut says the same
	}
	if s.stream != nil {
		s.stream.Close()
	}
	panic(http.ErrAbortHandler)
}

// log writes the request's one line. What the client or the engine wrote stays
// out: causes are our own words and the network's.
func (a *API) log(r *http.Request, id, route string, req *edge.Request, o *dispatch.Outcome) {
	level := slog.LevelInfo
	// A stream that broke off began with status 200.
	if o.Err != nil && o.Err.Kind != errs.Canceled && (o.Begun || o.Status >= 500) {
		level = slog.LevelWarn
	}
	ctx := r.Context()
	if !a.deps.Log.Enabled(ctx, level) {
		return
	}
	line := slog.NewRecord(a.deps.Clock.Now(), level, "request", 0) // without the place in the code, which costs more than the rest
	line.AddAttrs(attributes(id, route, req, o)...)
	_ = a.deps.Log.Handler().Handle(ctx, line)
}

// attributes are what is said of a request.
func attributes(id, route string, req *edge.Request, o *dispatch.Outcome) []slog.Attr {
	attrs := make([]slog.Attr, 0, 16)
	attrs = append(attrs,
		slog.String("id", id), slog.String("route", route), slog.String("outcome", o.Name),
		slog.Int("status", o.Status), slog.Duration("duration", o.Duration))
	if req != nil {
		attrs = append(attrs, slog.String("model", req.Model), slog.Bool("stream", req.Stream))
	}
	if p := o.Placement; p != nil {
		attrs = append(attrs, slog.Any("placement", placement{p}))
		if p.PrefillFault != "" {
			attrs = append(attrs, slog.String("prefill_fault", p.PrefillFault))
		}
	}
	if o.Usage.Known {
		attrs = append(attrs, slog.Int("prompt_tokens", int(o.Usage.Prompt)), slog.Int("output_tokens", int(o.Usage.Output)))
		if o.Usage.CachedKnown {
			attrs = append(attrs, slog.Int("cached_tokens", int(o.Usage.Cached)))
		}
	}
	if o.TTFT > 0 {
		attrs = append(attrs, slog.Duration("ttft", o.TTFT))
	}
	if o.Err != nil {
		attrs = append(attrs, slog.String("error", reason(o.Err)))
		if o.Err.Cause != nil {
			attrs = append(attrs, slog.String("cause", o.Err.Cause.Error()))
		}
	}
	return attrs
}

// placement is a placement as text, for handlers that append it and for those
// that ask for a string.
type placement struct{ *dispatch.Placement }

// MarshalText returns what AppendText appends.
func (p placement) MarshalText() ([]byte, error) { return p.AppendText(nil) }

// reason is the machine word of an error.
func reason(e *errs.Error) string {
	if e.Code != "" {
		return e.Code
	}
	return e.Kind.String()
}

var errGone = errors.New("openai: the client left while sending its body")
