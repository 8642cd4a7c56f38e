package assemble

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/fleet"
)

func quiet() Process { return NewProcess("test", slog.New(slog.DiscardHandler)) }

func settings(t *testing.T) *config.Config {
	t.Helper()
	e, err := config.Load(config.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	e.Config.Planner.Listen = "127.0.0.1:0"
	e.Config.Gateway.Listen = "127.0.0.1:0"
	return &e.Config
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never came true: %s", what)
		}
	}
}

func TestAWorkerJoinsDrainsAndLeaves(t *testing.T) {
	c := settings(t)
	p, err := StartPlanner(t.Context(), quiet(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	c.Worker.Engine, c.Worker.Planners, c.Worker.Labels, c.Worker.ID = "scripted", []string{p.Addr()}, []string{"zone=a"}, "w0"
	w, err := StartWorker(t.Context(), quiet(), c.Worker, config.TLS{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the worker is registered", func() bool { return p.View().Find("w0") >= 0 && w.Epoch() != 0 })
	got := p.View().Workers[0]
	if got.Epoch != w.Epoch() || got.Role != fleet.RoleBoth || got.URL == "" || len(got.Models) != 1 || got.Labels[0] != (fleet.Label{Key: "zone", Value: "a"}) {
		t.Errorf("registered as %+v", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := w.Close(ctx); err != nil {
		t.Error(err)
	}
	if n := len(p.View().Workers); n != 0 {
		t.Errorf("%d workers after it left", n)
	}
}

// A scripted worker that serves alone says where it listens, and answers probes.
func TestAScriptedWorkerSaysThatItIsReady(t *testing.T) {
	logs := &lockedBuffer{}
	c := settings(t)
	c.Worker.Engine, c.Worker.Planners, c.Worker.Listen = "scripted", nil, "127.0.0.1:0"
	w, err := StartWorker(t.Context(), NewProcess("test", slog.New(slog.NewTextHandler(logs, nil))), c.Worker, config.TLS{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeWithin(t, "worker", w.Close)
	if want := `msg="engine ready" engine=scripted`; !strings.Contains(logs.String(), want) ||
		!strings.Contains(logs.String(), "api="+strings.TrimPrefix(w.Self().URL, "http://")) {
		t.Errorf("%q is not in the log: %s", want, logs)
	}
	for _, path := range []string{"/livez", "/readyz", "/metrics"} {
		if status, body := ask(t, w.Self().URL+path); status != http.StatusOK {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

// The probes of a CPU worker follow its engine's health.
func TestProbesBesideAnEngine(t *testing.T) {
	health := http.StatusOK
	s := httptest.NewServer(beside(quiet(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/health" {
			health = http.StatusNotFound
		}
		w.WriteHeader(health)
	})))
	defer s.Close()
	for _, want := range []int{http.StatusOK, http.StatusServiceUnavailable} {
		health = want
		if got, _ := ask(t, s.URL+"/readyz"); got != want {
			t.Errorf("readyz is %d, health %d", got, want)
		}
		if got, _ := ask(t, s.URL+"/livez"); got != http.StatusOK {
			t.Errorf("livez is %d", got)
		}
	}
}

func TestABadScriptIsNamed(t *testing.T) {
	c := settings(t)
	c.Worker.Engine, c.Worker.Planners, c.Worker.Script = "scripted", nil, filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(c.Worker.Script, []byte("rules: [{matsch: 1}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := StartWorker(t.Context(), quiet(), c.Worker, config.TLS{}); !errors.Is(err, ErrScript) {
		t.Errorf("%v", err)
	}
}

func ask(t *testing.T, url string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestDefaultIDsDiffer(t *testing.T) {
	at := func(host string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(host), Port: 9000} }
	for _, tt := range []struct {
		listen, advertise, want string
	}{
		{"127.0.0.1", "", "decode-9000"},
		{"::", "", "decode-9000"},
		{"10.0.0.7", "", "decode-10.0.0.7-9000"},
		{"::", "gpu-3", "decode-gpu-3-9000"},
		{"127.0.0.1", "localhost", "decode-9000"},
	} {
		if got := defaultID(config.Worker{Role: "decode", Advertise: tt.advertise}, at(tt.listen)); got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}

// Beyond loopback an API without TLS is for those who say that they mean it.
func TestPlainAPIBeyondLoopback(t *testing.T) {
	local := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
	everywhere := &net.TCPAddr{IP: net.IPv4zero}
	for _, tt := range []struct {
		addr    net.Addr
		allowed bool
		want    error
	}{{local, false, nil}, {everywhere, true, nil}, {everywhere, false, ErrPlainAPI}} {
		if err := checkPlainAPI(tt.addr, tt.allowed); !errors.Is(err, tt.want) {
			t.Errorf("%v, allowed %v: %v", tt.addr, tt.allowed, err)
		}
	}
}
