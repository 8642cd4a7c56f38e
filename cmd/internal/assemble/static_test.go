package assemble

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
)

// lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestEngineRoot(t *testing.T) {
	for given, want := range map[string]string{
		"http://h:1": "http://h:1", "http://h:1/": "http://h:1", "http://h:1/v1": "http://h:1",
		"http://h:1/v1/": "http://h:1", "http://h:1/llm/v1": "http://h:1/llm", "http://h:1/v10": "http://h:1/v10",
	} {
		if got := engineRoot(given); got != want {
			t.Errorf("%s: %s, want %s", given, got, want)
		}
	}
}

// A gateway whose engines are all silent is not ready, says which, and logs each
// change once.
func TestGatewayFollowsItsEngines(t *testing.T) {
	var dead atomic.Bool
	var asked atomic.Int64
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		if dead.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
	}))
	defer engine.Close()
	logs := &lockedBuffer{}
	p := NewProcess("test", slog.New(slog.NewTextHandler(logs, nil)))
	c := settings(t).Gateway
	c.Listen, c.Admin, c.Engines = "127.0.0.1:0", "", []string{engine.URL + "/v1", "http://127.0.0.1:1"}
	g, err := StartStaticGateway(t.Context(), p, &config.Config{Gateway: c})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close(t.Context()) }()
	await(t, g, http.StatusOK, `both 1 of 1`)
	dead.Store(true)
	await(t, g, http.StatusServiceUnavailable, `model "m": workers up: both 0 of 1; none can generate`)
	for n := asked.Load() + 3; asked.Load() < n; { // several more times without an answer
		time.Sleep(10 * time.Millisecond)
	}
	dead.Store(false)
	await(t, g, http.StatusOK, `both 1 of 1`)
	lost := fmt.Sprintf("engine unreachable; it is asked again until it answers\" engine=%s ", engine.URL)
	if text := logs.String(); strings.Count(text, lost) != 1 || strings.Count(text, "engine unreachable") != 2 ||
		strings.Count(text, "engine reachable again") != 1 {
		t.Errorf("log:\n%s", text)
	}
}

func await(t *testing.T, g *Gateway, status int, part string) {
	t.Helper()
	var last string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, g.URL()+"/readyz?verbose", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if last = string(body); resp.StatusCode == status && strings.Contains(last, part) {
			return
		}
	}
	t.Fatalf("never %d with %q: %s", status, part, last)
}
