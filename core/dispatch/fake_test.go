package dispatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/wire/edge"
)

const (
	evRole  = `data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	evHi    = `data: {"choices":[{"delta":{"content":"hi"},"finish_reason":null}]}` + "\n\n"
	evStop  = `data: {"choices":[{"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	evUsage = `data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":3}}` + "\n\n"
	evDone  = "data: [DONE]\n\n"
	evError = `data: {"error":{"message":"boom","type":"InternalServerError","code":500}}` + "\n\n"

	goodAnswer = `{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":3}}`
)

// part is one step of a scripted body.
type part struct {
	text string
	hang bool  // wait for the call's end
	err  error // fail the read

	after time.Duration // wait first
}

// script is an engine's behaviour for one call.
type script struct {
	err    error // Do fails
	hang   bool  // Do waits for the call's end
	status int
	reason string
	kv     string

	continues string
	plain     bool // JSON, not a stream
	body      []part
}

func streamOf(parts ...string) script {
	s := script{status: 200}
	for _, p := range parts {
		s.body = append(s.body, part{text: p})
	}
	return s
}

func good() script { return streamOf(evRole, evHi, evHi, evHi, evStop, evUsage, evDone) }

func refusing(status int, reason string) script {
	return script{status: status, reason: reason, plain: true, body: []part{{text: `{"error":{"message":"no","type":"t","param":null,"code":"c"}}`}}}
}

// fakeBody plays a script's body.
type fakeBody struct {
	ctx    context.Context
	parts  []part
	closed func()
	once   sync.Once
}

func (b *fakeBody) Read(p []byte) (int, error) {
	if b.ctx.Err() != nil {
		return 0, fmt.Errorf("%w", b.ctx.Err())
	}
	if len(b.parts) == 0 {
		return 0, io.EOF
	}
	next := &b.parts[0]
	time.Sleep(next.after)
	next.after = 0
	switch {
	case next.hang:
		<-b.ctx.Done()
		return 0, b.ctx.Err()
	case next.err != nil:
		return 0, next.err
	}
	n := copy(p, next.text)
	if next.text = next.text[n:]; next.text == "" {
		b.parts = b.parts[1:]
	}
	return n, nil
}

func (b *fakeBody) Close() error {
	b.once.Do(b.closed)
	return nil
}

// yard is a dispatcher over scripted engines.
type yard struct {
	t        testing.TB
	d        *Dispatcher
	registry *measure.Registry
	view     *fleet.View

	mu    sync.Mutex
	play  func(w fleet.WorkerID, c *engine.Call) script
	calls []string // worker and leg, in order
	open  int      // bodies not closed

	repeats bool // calls may be repeated
}

func (y *yard) Repeatable() bool { return y.repeats }

func (y *yard) Do(ctx context.Context, w *fleet.Worker, c *engine.Call) (*engine.Response, error) {
	y.mu.Lock()
	y.calls = append(y.calls, string(w.ID)+" "+c.Leg.String())
	s := y.play(w.ID, c)
	y.mu.Unlock()
	if s.hang {
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if s.err != nil {
		return nil, s.err
	}
	y.mu.Lock()
	y.open++
	y.mu.Unlock()
	contentType := "text/event-stream"
	if s.plain {
		contentType = "application/json"
	}
	body := &fakeBody{ctx: ctx, parts: append([]part(nil), s.body...), closed: func() {
		y.mu.Lock()
		y.open--
		y.mu.Unlock()
	}}
	return &engine.Response{Status: s.status, ContentType: contentType, KV: s.kv, Reason: s.reason, Continues: s.continues, Body: body}, nil
}

func newYard(t testing.TB, cfg Config, workers ...fleet.Worker) *yard {
	t.Helper()
	y := &yard{t: t, registry: &measure.Registry{}, play: func(fleet.WorkerID, *engine.Call) script { return good() }}
	y.setWorkers(1, workers...)
	if cfg.Deadlines.Hold == 0 {
		cfg.Deadlines.Hold = -1
	}
	if cfg.Seed == 0 {
		cfg.Seed = 1
	}
	d, err := New(cfg, Deps{
		View: func() *fleet.View {
			y.mu.Lock()
			defer y.mu.Unlock()
			return y.view
		},
		Adapter:  func(string) engine.Adapter { return y },
		Registry: y.registry, Clock: clock.Real{},
	})
	if err != nil {
		t.Fatal(err)
	}
	y.d = d
	return y
}

func (y *yard) setWorkers(index uint64, workers ...fleet.Worker) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for i := range workers {
		w := &workers[i]
		w.Models, w.Engine, w.Compat, w.Transfer = []string{"m"}, "fake", "c", "t"
		if w.Epoch == 0 {
			w.Epoch = 1
		}
		if w.Role == 0 {
			w.Role = fleet.RoleBoth
		}
	}
	y.view = fleet.NewView(index, workers)
}

// plays gives each worker one script for every call.
func (y *yard) plays(scripts map[fleet.WorkerID]script) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.play = func(w fleet.WorkerID, _ *engine.Call) script { return scripts[w] }
}

func (y *yard) called() []string {
	y.mu.Lock()
	defer y.mu.Unlock()
	return append([]string(nil), y.calls...)
}

// sink records an answer.
type sink struct {
	head  *Head
	got   strings.Builder
	fail  error // of every write
	write func(p []byte)
}

func (s *sink) Begin(h Head) error {
	if s.head != nil {
		return errors.New("Begin twice")
	}
	s.head = &h
	return nil
}

func (s *sink) Write(p []byte) error {
	if s.head == nil {
		return errors.New("Write before Begin")
	}
	s.got.Write(p)
	if s.write != nil {
		s.write(p)
	}
	return s.fail
}

const (
	longStream  = `{"model":"m","stream":true,"prompt":"%s"}`
	shortStream = `{"model":"m","stream":true,"prompt":"hello"}`
	shortWhole  = `{"model":"m","prompt":"hello"}`
)

// long is a streamed request of about 1,000 tokens.
func long() string { return fmt.Sprintf(longStream, strings.Repeat("x", 4000)) }

// serve runs one request and checks what holds for every one.
func (y *yard) serve(ctx context.Context, body string, s *sink) Outcome {
	y.t.Helper()
	o := y.serveTo(ctx, body, s)
	if o.Begun != (s.head != nil) {
		y.t.Errorf("begun %v, sink %v", o.Begun, s.head)
	}
	return o
}

func (y *yard) serveTo(ctx context.Context, body string, s Sink) Outcome {
	req, err := edge.Parse([]byte(body), 0)
	if err != nil {
		y.t.Fatal(err)
	}
	life, err := y.d.Accept("test")
	if err != nil {
		return Outcome{Err: errs.As(err)}
	}
	defer life.Close()
	return life.Serve(ctx, &Request{Request: req, ID: "id", Path: "/p"}, s)
}

// balanced checks that nothing is in flight.
func (y *yard) balanced() {
	y.t.Helper()
	if n := y.d.Load().InFlight(); n != 0 {
		y.t.Errorf("%d reservations left", n)
	}
	if y.open != 0 {
		y.t.Errorf("%d bodies left open", y.open)
	}
	for _, f := range y.registry.Snapshot() {
		for _, s := range f.Series {
			if f.Desc.Type == measure.GaugeType && f.Desc.Name != measure.PrefixTrust.Name && s.Value != 0 {
				y.t.Errorf("%s %v = %v", f.Desc.Name, s.Labels, s.Value)
			}
		}
	}
}

func (y *yard) counter(d measure.Desc) (total float64) {
	for _, f := range y.registry.Snapshot() {
		if f.Desc.Name == d.Name {
			for _, s := range f.Series {
				total += s.Value
			}
		}
	}
	return total
}
