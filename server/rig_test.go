package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a gateway on a real listener in front of workers a test writes.
type rig struct {
	t        *testing.T
	url      string
	view     atomic.Pointer[fleet.View]
	index    uint64
	workers  []fleet.Worker
	registry *measure.Registry
	dispatch *dispatch.Dispatcher
	server   *server.Server
	client   *http.Client
	logs     *syncBuffer
}

type rigConfig struct {
	server    server.Config
	dispatch  dispatch.Config
	admission admit.Policy // nil is open
	tenant    func(*http.Request) (string, admit.Class, error)
}

func newRig(t *testing.T, c rigConfig) *rig {
	t.Helper()
	r := &rig{t: t, registry: &measure.Registry{}, logs: &syncBuffer{}}
	r.view.Store(fleet.NewView(0, nil))
	if c.dispatch.Deadlines.Hold == 0 {
		c.dispatch.Deadlines.Hold = -1
	}
	adapter := &adapter{http.Transport{DisableCompression: true}}
	var err error
	r.dispatch, err = dispatch.New(c.dispatch, dispatch.Deps{
		View: r.view.Load, Registry: r.registry, Clock: clock.Real{},
		Adapter:   func(string) engine.Adapter { return adapter },
		Admission: c.admission,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.server, err = server.New(c.server, server.Deps{
		Dispatcher: r.dispatch, View: r.view.Load, Tenant: c.tenant, Registry: r.registry, Clock: clock.Real{},
		Log: slog.New(slog.NewTextHandler(r.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.url = "http://" + l.Addr().String()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.server.Serve(l); err != nil {
			t.Error(err)
		}
	})
	transport := &http.Transport{DisableCompression: true}
	r.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		r.server.Close()
		wg.Wait()
		transport.CloseIdleConnections()
		adapter.CloseIdleConnections()
	})
	return r
}

// worker adds a worker that answers with h.
func (r *rig) worker(id fleet.WorkerID, role fleet.Role, h http.HandlerFunc) *httptest.Server {
	r.t.Helper()
	s := httptest.NewServer(h)
	r.t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	r.register(id, role, s.URL)
	return s
}

// register announces an incarnation of a worker at url.
func (r *rig) register(id fleet.WorkerID, role fleet.Role, url string) {
	r.index++
	w := fleet.Worker{
		ID: id, Epoch: fleet.Epoch(r.index), Incarnation: "i", Role: role, Engine: "cpu", Models: []string{"m"},
		URL: url, Transfer: "127.0.0.1:1", Compat: "c",
	}
	kept := r.workers[:0:0]
	for _, old := range r.workers {
		if old.ID != id {
			kept = append(kept, old)
		}
	}
	kept = append(kept, w)
	r.workers = kept
	r.publish()
}

func (r *rig) publish() {
	r.view.Store(fleet.NewView(r.index, append([]fleet.Worker(nil), r.workers...)))
}

func (r *rig) post(ctx context.Context, body string, headers ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return r.client.Do(req)
}

// chat posts a chat request and returns status, headers, body and read error.
func (r *rig) chat(body string, headers ...string) (int, http.Header, string, error) {
	r.t.Helper()
	resp, err := r.post(r.t.Context(), body, headers...)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, string(b), err
}

// idle waits until nothing is in flight and checks every such gauge.
func (r *rig) idle() {
	r.t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for {
		busy := ""
		for _, f := range r.registry.Snapshot() {
			if f.Desc.Type != measure.GaugeType || f.Desc.Name == measure.PrefixTrust.Name {
				continue
			}
			for _, s := range f.Series {
				if s.Value != 0 {
					busy = f.Desc.Name + " " + strings.Join(s.Labels, ",")
				}
			}
		}
		if busy == "" && r.dispatch.Load().InFlight() == 0 {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("still not zero: %s; %d in flight", busy, r.dispatch.Load().InFlight())
		}
		time.Sleep(time.Millisecond)
	}
}

// count is the value of a counter, summed over the series that have all of labels.
func (r *rig) count(d measure.Desc, labels ...string) float64 {
	total := 0.0
	for _, f := range r.registry.Snapshot() {
		if f.Desc.Name != d.Name {
			continue
		}
		for _, s := range f.Series {
			all := " " + strings.Join(s.Labels, " ") + " "
			match := true
			for _, l := range labels {
				match = match && strings.Contains(all, " "+l+" ")
			}
			if match {
				total += s.Value
				for _, n := range s.Counts {
					total += float64(n)
				}
			}
		}
	}
	return total
}

// adapter is the least an engine.Adapter must be. (The real ones are gpu's.)
type adapter struct{ http.Transport }

func (a *adapter) Do(ctx context.Context, w *fleet.Worker, c *engine.Call) (*engine.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL+c.Path, bytes.NewReader(c.Body))
	if err != nil {
		return nil, err
	}
	req.Header.Set(engine.HeaderRequestID, c.RequestID)
	if c.Leg != engine.Aggregated {
		req.Header.Set(engine.HeaderLeg, c.Leg.String())
		req.Header.Set(engine.HeaderTransfer, strconv.FormatUint(c.TransferID, 16))
		req.Header.Set(engine.HeaderPeer, engine.PeerOf(c.Peer).String())
	}
	resp, err := a.RoundTrip(req) //nolint:bodyclose // the caller closes Response.Body
	if err != nil {
		return nil, classify(ctx, err)
	}
	return &engine.Response{
		Status: resp.StatusCode, ContentType: resp.Header.Get("Content-Type"), RetryAfter: resp.Header.Get("Retry-After"),
		KV: resp.Header.Get(engine.HeaderKV), Reason: resp.Header.Get(engine.HeaderReason), Body: &body{resp.Body, ctx},
	}, nil
}

type body struct {
	io.ReadCloser
	ctx context.Context
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = classify(b.ctx, err)
	}
	return n, err
}

func classify(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return fmt.Errorf("%w: %w", engine.ErrConnect, err)
	}
	return fmt.Errorf("%w: %w", engine.ErrBroken, err)
}

type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// A small answer of each kind.
const (
	chunkRole   = `data: {"id":"1","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	chunkHi     = `data: {"id":"1","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}` + "\n\n"
	chunkYou    = `data: {"id":"1","choices":[{"index":0,"delta":{"content":" you"},"finish_reason":null}]}` + "\n\n"
	chunkStop   = `data: {"id":"1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	chunkUsage  = `data: {"id":"1","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}` + "\n\n"
	chunkDone   = "data: [DONE]\n\n"
	wholeStream = chunkRole + chunkHi + chunkYou + chunkStop + chunkUsage + chunkDone
	shownStream = chunkRole + chunkHi + chunkYou + chunkStop + chunkDone

	wholeAnswer = `{"id":"1","choices":[{"index":0,"message":{"role":"assistant","content":"hi you"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2}}`

	streamBody = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}`
	plainBody  = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`
)

// serve answers streams and whole requests.
func serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if !strings.Contains(string(body), `"stream":true`) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, wholeAnswer)
		return
	}
	events(w, wholeStream)
}

// events streams parts, each flushed.
func events(w http.ResponseWriter, parts ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	for _, p := range parts {
		_, _ = io.WriteString(w, p)
		_ = http.NewResponseController(w).Flush()
	}
}

// cut ends a response by breaking the connection.
func cut(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}
