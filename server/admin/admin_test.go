package admin

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/wire/edge"
)

// echo answers every call with one whole answer.
type echo struct{}

func (echo) Do(context.Context, *fleet.Worker, *engine.Call) (*engine.Response, error) {
	answer := `{"choices":[{"text":"x"}],"usage":{"prompt_tokens":40,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":32}}}`
	return &engine.Response{Status: 200, ContentType: "application/json", Body: io.NopCloser(strings.NewReader(answer))}, nil
}

// quiet takes an answer and forgets it.
type quiet struct{}

func (quiet) Begin(dispatch.Head) error { return nil }
func (quiet) Write([]byte) error        { return nil }

func TestExplain(t *testing.T) {
	view := fleet.NewView(1, []fleet.Worker{
		{ID: "a", Epoch: 1, Role: fleet.RoleBoth, Engine: "e", Models: []string{"m"}, URL: "http://a"},
		{ID: "b", Epoch: 1, Role: fleet.RoleBoth, Engine: "e", Models: []string{"m"}, URL: "http://b", Draining: true},
	})
	d, err := dispatch.New(dispatch.Config{Seed: 1}, dispatch.Deps{
		View:    func() *fleet.View { return view },
		Adapter: func(string) engine.Adapter { return echo{} }, Registry: &measure.Registry{}, Clock: clock.Real{},
	})
	if err != nil {
		t.Fatal(err)
	}
	secret := strings.Repeat("the secret of the prompt ", 8)
	req, err := edge.Parse([]byte(`{"model":"m","prompt":"`+secret+`"}`), 0)
	if err != nil {
		t.Fatal(err)
	}
	life, err := d.Accept("completions")
	if err != nil {
		t.Fatal(err)
	}
	life.Serve(t.Context(), &dispatch.Request{Request: req, ID: "r/1", Path: "/v1/completions"}, quiet{})
	life.Close()

	status, body := get(t, d, "localhost", "/admin/explain/r%2F1")
	if status != http.StatusOK || strings.Contains(body, "secret") {
		t.Fatalf("%d %s", status, body)
	}
	var e Explanation
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		t.Fatal(err)
	}
	if e.RequestID != "r/1" || e.Model != "m" || len(e.Placements) != 1 {
		t.Fatalf("%+v", e)
	}
	p := e.Placements[0]
	if p.Worker != "a" || p.Outcome != "ok" || p.CachedTokens == nil || *p.CachedTokens != 32 || p.PromptTokens == 0 ||
		len(p.Candidates) != 1 || p.Candidates[0].Cost == nil || p.Candidates[0].Running != nil ||
		len(p.Vetoed) != 1 || p.Vetoed[0] != (Vetoed{"b", "draining"}) {
		t.Errorf("%s", body)
	}
	if status, _ := get(t, d, "[::1]:8091", "/admin/explain/unknown"); status != http.StatusNotFound {
		t.Errorf("an unknown request: %d", status)
	}
	if status, _ := get(t, d, "rebound.example:8091", "/admin/explain/r%2F1"); status != http.StatusForbidden {
		t.Errorf("another host's name: %d", status)
	}
}

func get(t *testing.T, d *dispatch.Dispatcher, host, path string) (status int, body string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
	r.Host = host
	w := httptest.NewRecorder()
	Handler(Parts{Dispatcher: func() *dispatch.Dispatcher { return d }}).ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestCheckAddress(t *testing.T) {
	for _, good := range []string{"127.0.0.1:80", "localhost:0", "[::1]:8091", "127.9.9.9:1"} {
		if err := CheckAddress(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{":8091", "0.0.0.0:8091", "10.0.0.1:80", "[::]:80", "example.com:80", "localhost.example:1"} {
		if err := CheckAddress(bad); !errors.Is(err, ErrPublic) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if CheckAddress("127.0.0.1") == nil {
		t.Error("an address without a port")
	}
}

func TestWorkers(t *testing.T) {
	inFlight := int64(0)
	h := Handler(Parts{Workers: func() []Worker {
		return []Worker{{ID: "w0", Epoch: 7, Role: "decode", Engine: "cpu", Models: []string{"m"}, URL: "http://w", InFlight: &inFlight}}
	}})
	ask := func(h http.Handler) (int, string) {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1/admin/workers", http.NoBody)
		h.ServeHTTP(w, r)
		return w.Code, strings.TrimSpace(w.Body.String())
	}
	want := `{"workers":[{"id":"w0","epoch":7,"role":"decode","engine":"cpu","models":["m"],"url":"http://w","draining":false,"in_flight":0}]}`
	if code, body := ask(h); code != http.StatusOK || body != want {
		t.Errorf("%d %s", code, body)
	}
	if code, body := ask(Handler(Parts{Workers: func() []Worker { return nil }})); code != http.StatusOK || body != `{"workers":[]}` {
		t.Errorf("without any: %d %s", code, body)
	}
	if code, body := ask(Handler(Parts{})); code != http.StatusNotFound || !strings.Contains(body, "no_fleet") {
		t.Errorf("without a fleet: %d %s", code, body)
	}
}
