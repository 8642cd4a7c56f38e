package scripted

import (
	"errors"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
)

func TestLife(t *testing.T) {
	e, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Kill(); !errors.Is(err, ErrNotRunning) {
		t.Errorf("killed before the start: %v", err)
	}
	if err := e.Restart(t.Context()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("restarted before the start: %v", err)
	}
	if l := e.Load(); l != (Load{}) {
		t.Errorf("load before the start: %+v", l)
	}
	if err := e.Start(t.Context(), "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context(), "127.0.0.1:0"); !errors.Is(err, ErrRunning) {
		t.Errorf("started twice: %v", err)
	}
	if pub, replay := e.EventsAddr(0); pub != "" || replay != "" {
		t.Errorf("events at %q, %q without a script", pub, replay)
	}
	if err := e.Start(t.Context(), "nowhere"); err == nil {
		t.Error("started nowhere")
	}
	for range 2 {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if err := e.Start(t.Context(), "127.0.0.1:0"); !errors.Is(err, ErrNotRunning) {
		t.Errorf("started after Close: %v", err)
	}
}

// An engine whose event port is taken does not start, and leaves nothing behind.
func TestEventPortTaken(t *testing.T) {
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	for _, script := range []EventsScript{
		{Publish: ln.Addr().String()},
		{Publish: "127.0.0.1:0", Replay: ln.Addr().String()},
	} {
		e, err := New(Options{Script: &Script{Events: script}})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Start(t.Context(), "127.0.0.1:0"); err == nil || e.Running() {
			t.Errorf("started all the same: %v", err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Closing an engine ends a death's pause before its restart.
func TestCloseWhileDead(t *testing.T) {
	e := NewTest(t, YAML("rules: [{do: {die: {restart_after: 1h}}}]"))
	if err := exchangeRaw(t, e, http.MethodPost, "/v1/completions", `{"prompt":"a"}`); err == nil {
		t.Error("answered")
	}
	if err := e.Close(); err != nil || e.Running() {
		t.Errorf("close: %v", err)
	}
}

// Behind a full batch requests wait, behind a full queue they are refused, and
// one that leaves while waiting is forgotten at once.
func TestFull(t *testing.T) {
	e := NewTest(t, YAML("rules: [{match: {nth: [1]}, do: {generate: {first_token: 1h}}}]"),
		func(o *Options) { o.MaxRunning, o.MaxWaiting = 1, 1 })
	send := func() net.Conn {
		conn := dial(t, e)
		sendRaw(t, conn, http.MethodPost, "/v1/completions", `{"prompt":"a"}`)
		return conn
	}
	send()
	for e.Load().Running == 0 {
		time.Sleep(time.Millisecond)
	}
	waiting := send()
	for e.Load().Waiting == 0 {
		time.Sleep(time.Millisecond)
	}
	status, header, a := ask(t, e, "/v1/completions", `{"prompt":"a"}`)
	if status != 503 || header.Get(engine.HeaderReason) != "queue_full" || header.Get("Retry-After") != "1" || a.Error.Code != 503 {
		t.Errorf("%d %v %+v", status, header, a)
	}
	_ = waiting.Close()
	wait(t, e, func(c Counters, _ []Record) bool { return c.Aborted == 1 })
	if r := e.Records(1)[0]; r.Stage != "queued" {
		t.Errorf("aborted at %q", r.Stage)
	}
	if l := e.Load(); l.Waiting != 0 {
		t.Errorf("%+v", l)
	}
}

// The events section may change while the engine runs.
func TestEventsScriptChanges(t *testing.T) {
	e := NewTest(t, YAML("events: {publish: '127.0.0.1:0', replay: '127.0.0.1:0'}"))
	sub, _ := listen(t, e, 0)
	store(t, e, 1)
	if err := e.SetScript(&Script{Events: EventsScript{Drop: []uint64{1}}}); err != nil {
		t.Fatal(err)
	}
	store(t, e, 2)
	store(t, e, 3)
	if seqs, _ := receive(t, sub.Recv, 2); seqs[0] != 0 || seqs[1] != 2 {
		t.Errorf("%v", seqs)
	}
}
