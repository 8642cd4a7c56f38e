package enginetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
)

// Behaviour is what an engine does with one call. Steps that do not apply are
// zero.
type Behaviour struct {
	Refuse      bool // nothing listens
	Hang        bool // accept the call, never answer
	CutBefore   bool // break the connection before the status
	Status      int
	ContentType string
	Parts       []string // of the body, each sent when Next allows it
	Next        chan struct{}
	Cut         bool // break the connection after Parts instead of ending
	HangAfter   bool // neither end nor break after Parts
}

// Seen is a call as the engine saw it.
type Seen struct {
	Path, RequestID string
	Body            []byte
}

// Rig is an adapter with an engine that a test controls.
type Rig interface {
	Adapter() engine.Adapter
	// Engine starts an engine. It stops with the test.
	Engine(b Behaviour) Engine
}

// Engine is one running engine.
type Engine struct {
	Worker  *fleet.Worker
	Seen    <-chan Seen     // calls, as they arrive whole
	Aborted <-chan struct{} // one value per call whose client left
}

// patience is how long a test waits for what must happen.
const patience = 10 * time.Second

// Run proves the contract.
func Run(t *testing.T, newRig func(t *testing.T) Rig) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Rig)
	}{
		{"PassesBytes", passesBytes},
		{"StreamsInTime", streamsInTime},
		{"PassesRefusals", passesRefusals},
		{"ConnectFailure", connectFailure},
		{"BrokenBeforeStatus", brokenBeforeStatus},
		{"BrokenBody", brokenBody},
		{"CancelBeforeStatus", cancelBeforeStatus},
		{"CancelMidBody", cancelMidBody},
		{"CloseAborts", closeAborts},
		{"CancelledBeforehand", cancelledBeforehand},
		{"NewIncarnation", newIncarnation},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, newRig(t)) })
	}
}

func call(stream bool) *engine.Call {
	return &engine.Call{RequestID: "id-1", Path: "/v1/completions", Body: []byte(`{"model":"m", "n":1.50}`), Stream: stream}
}

// do sends a call that must be answered.
func do(t *testing.T, r Rig, e Engine, c *engine.Call) *engine.Response {
	t.Helper()
	resp, err := r.Adapter().Do(t.Context(), e.Worker, c)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// The engine gets the client's body, path and id; the caller the engine's
// answer. The body of the call is not modified.
func passesBytes(t *testing.T, r Rig) {
	e := r.Engine(Behaviour{Status: 200, ContentType: "application/json", Parts: []string{`{"a":`, `1}`}})
	c := call(false)
	before := bytes.Clone(c.Body)
	resp := do(t, r, e, c)
	body, err := io.ReadAll(resp.Body)
	if err != nil || string(body) != `{"a":1}` || resp.Status != 200 || resp.ContentType != "application/json" {
		t.Errorf("%+v %q %v", resp, body, err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	seen := <-e.Seen
	if seen.Path != c.Path || seen.RequestID != c.RequestID || !bytes.Equal(seen.Body, before) || !bytes.Equal(c.Body, before) {
		t.Errorf("engine saw %+v", seen)
	}
}

// Do returns with the status, and each piece is readable before the next is
// sent.
func streamsInTime(t *testing.T, r Rig) {
	parts := []string{"data: a\n\n", "data: b\n\n", "data: [DONE]\n\n"}
	next := make(chan struct{})
	e := r.Engine(Behaviour{Status: 200, ContentType: "text/event-stream", Parts: parts, Next: next})
	resp := do(t, r, e, call(true))
	defer func() { _ = resp.Body.Close() }()
	for _, want := range parts {
		next <- struct{}{}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != want {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if n, err := resp.Body.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %d, %v", n, err)
	}
}

// An engine's own refusal is an answer, not an error.
func passesRefusals(t *testing.T, r Rig) {
	for _, status := range []int{302, 400, 421, 429, 500, 503} {
		e := r.Engine(Behaviour{Status: status, ContentType: "application/json", Parts: []string{"{}"}})
		resp := do(t, r, e, call(false))
		if body, err := io.ReadAll(resp.Body); err != nil || resp.Status != status || string(body) != "{}" {
			t.Errorf("%d became %d %q %v", status, resp.Status, body, err)
		}
		_ = resp.Body.Close()
	}
}

func connectFailure(t *testing.T, r Rig) {
	e := r.Engine(Behaviour{Refuse: true})
	if _, err := r.Adapter().Do(t.Context(), e.Worker, call(true)); !errors.Is(err, engine.ErrConnect) || errors.Is(err, engine.ErrBroken) {
		t.Errorf("nobody listens: %v", err)
	}
	bad := *e.Worker
	bad.ID, bad.URL = "bad", "://"
	if _, err := r.Adapter().Do(t.Context(), &bad, call(true)); !errors.Is(err, engine.ErrConnect) {
		t.Errorf("no URL: %v", err)
	}
}

func brokenBeforeStatus(t *testing.T, r Rig) {
	e := r.Engine(Behaviour{CutBefore: true})
	if _, err := r.Adapter().Do(t.Context(), e.Worker, call(true)); !errors.Is(err, engine.ErrBroken) || errors.Is(err, engine.ErrConnect) {
		t.Errorf("broken after the call was sent: %v", err)
	}
	if len(e.Seen) != 1 {
		t.Errorf("the engine saw the call %d times", len(e.Seen))
	}
}

// What came before the break is readable; the break is not an end.
func brokenBody(t *testing.T, r Rig) {
	for _, kind := range []string{"text/event-stream", "application/json"} {
		e := r.Engine(Behaviour{Status: 200, ContentType: kind, Parts: []string{"data: a\n\n"}, Cut: true})
		resp := do(t, r, e, call(true))
		body, err := io.ReadAll(resp.Body)
		if string(body) != "data: a\n\n" || !errors.Is(err, engine.ErrBroken) {
			t.Errorf("%s: %q, %v", kind, body, err)
		}
		_ = resp.Body.Close()
	}
}

func cancelBeforeStatus(t *testing.T, r Rig) {
	e := r.Engine(Behaviour{Hang: true})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-e.Seen
		cancel()
	}()
	_, err := r.Adapter().Do(ctx, e.Worker, call(false))
	if !errors.Is(err, context.Canceled) || errors.Is(err, engine.ErrBroken) || errors.Is(err, engine.ErrConnect) {
		t.Errorf("cancelled: %v", err)
	}
	aborted(t, e)
}

func cancelMidBody(t *testing.T, r Rig) {
	e := r.Engine(Behaviour{Status: 200, ContentType: "text/event-stream", Parts: []string{"data: a\n\n"}, HangAfter: true})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	resp, err := r.Adapter().Do(ctx, e.Worker, call(true))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.ReadFull(resp.Body, make([]byte, 9)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := resp.Body.Read(make([]byte, 1)); !errors.Is(err, context.Canceled) || errors.Is(err, engine.ErrBroken) {
		t.Errorf("cancelled: %v", err)
	}
	aborted(t, e)
}

// Closing the body early stops the engine as well.
func closeAborts(t *testing.T, r Rig) {
	e := r.Engine(Behaviour{Status: 200, ContentType: "text/event-stream", Parts: []string{"data: a\n\n"}, HangAfter: true})
	resp := do(t, r, e, call(true))
	if _, err := io.ReadFull(resp.Body, make([]byte, 9)); err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	aborted(t, e)
}

func cancelledBeforehand(t *testing.T, r Rig) {
	e := r.Engine(Behaviour{Status: 200})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Adapter().Do(ctx, e.Worker, call(false)); !errors.Is(err, context.Canceled) || errors.Is(err, engine.ErrConnect) {
		t.Errorf("cancelled beforehand: %v", err)
	}
}

// A worker that restarted under its id is called at its new address.
func newIncarnation(t *testing.T, r Rig) {
	first := r.Engine(Behaviour{Status: 200})
	_ = do(t, r, first, call(false)).Body.Close()
	second := r.Engine(Behaviour{Status: 200})
	again := *second.Worker
	again.ID, again.Epoch = first.Worker.ID, first.Worker.Epoch+1
	second.Worker = &again
	_ = do(t, r, second, call(false)).Body.Close()
	if len(second.Seen) != 1 {
		t.Error("the call went to the old incarnation")
	}
}

func aborted(t *testing.T, e Engine) {
	t.Helper()
	select {
	case <-e.Aborted:
	case <-t.Context().Done():
	case <-time.After(patience): //nolint:forbidigo // a test waits for a real engine
		t.Error("the engine was not told")
	}
}
