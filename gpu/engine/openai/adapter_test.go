package openai_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/engine/enginetest"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/gpu/engine/openai"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	enginetest.Run(t, func(t *testing.T) enginetest.Rig {
		a := openai.New(openai.Config{Connect: 5 * time.Second})
		t.Cleanup(a.Close)
		return &rig{t: t, adapter: a}
	})
}

type rig struct {
	t       *testing.T
	adapter *openai.Adapter
	n       int
}

func (r *rig) Adapter() engine.Adapter { return r.adapter }

func (r *rig) Engine(b enginetest.Behaviour) enginetest.Engine {
	r.n++
	seen, aborted := make(chan enginetest.Seen, 128), make(chan struct{}, 128)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		seen <- enginetest.Seen{Path: req.URL.Path, RequestID: req.Header.Get(engine.HeaderRequestID), Body: body}
		behave(b, w, req, aborted)
	}))
	r.t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	if b.Refuse {
		s.Close()
	}
	return enginetest.Engine{
		Worker: &fleet.Worker{ID: fleet.WorkerID(strconv.Itoa(r.n)), Epoch: fleet.Epoch(r.n), URL: s.URL},
		Seen:   seen, Aborted: aborted,
	}
}

func behave(b enginetest.Behaviour, w http.ResponseWriter, req *http.Request, aborted chan<- struct{}) {
	control := http.NewResponseController(w)
	wait := func() {
		<-req.Context().Done()
		aborted <- struct{}{}
	}
	cut := func() {
		if conn, _, err := control.Hijack(); err == nil {
			_ = conn.Close()
		}
	}
	switch {
	case b.CutBefore:
		cut()
		return
	case b.Hang:
		wait()
		return
	}
	w.Header().Set("Content-Type", b.ContentType)
	w.WriteHeader(b.Status)
	_ = control.Flush()
	for _, p := range b.Parts {
		if b.Next != nil {
			<-b.Next
		}
		_, _ = io.WriteString(w, p)
		_ = control.Flush()
	}
	switch {
	case b.Cut:
		cut()
	case b.HangAfter:
		wait()
	}
}

// A worker that hangs does not delay another's calls, and one that closes idle
// connections costs no call.
func TestPoolsAreApart(t *testing.T) {
	a := openai.New(openai.Config{})
	defer a.Close()
	r := &rig{t: t, adapter: a}
	hung := r.Engine(enginetest.Behaviour{Hang: true})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 50)
	for range 50 {
		go func() {
			_, err := a.Do(ctx, hung.Worker, &engine.Call{Path: "/x"})
			done <- err
		}()
	}
	well := r.Engine(enginetest.Behaviour{Status: 200})
	for range 100 {
		resp, err := a.Do(t.Context(), well.Worker, &engine.Call{Path: "/x"})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		<-well.Seen
	}
	cancel()
	for range 50 {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// Connections are reused, for whole and for streamed answers.
func TestConnectionsAreReused(t *testing.T) {
	a := openai.New(openai.Config{})
	defer a.Close()
	var conns atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "{")
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, "}")
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	w := &fleet.Worker{ID: "w", Epoch: 1, URL: s.URL}
	for range 20 {
		resp, err := a.Do(t.Context(), w, &engine.Call{Path: "/x", Body: []byte("{}")})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}
