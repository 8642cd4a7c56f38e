package assemble

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/server/admin"
)

// startAlone starts a scripted worker without a planner.
func startAlone(t *testing.T, model string) *Worker {
	t.Helper()
	c := settings(t)
	c.Worker.Engine, c.Worker.Planners, c.Worker.ServedName = "scripted", nil, model
	w, err := StartWorker(t.Context(), quiet(), c.Worker, config.TLS{})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func end(t *testing.T, part func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := part(ctx); err != nil {
		t.Error(err)
	}
}

// completion asks for a completion and returns the status.
func completion(t *testing.T, url, model string) int {
	t.Helper()
	body := strings.NewReader(`{"model":"` + model + `","prompt":"hello","max_tokens":4}`)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Error(err)
	}
	return resp.StatusCode
}

func TestAGatewayThatCannotStartLeavesNothingBehind(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	c := settings(t)
	c.Gateway.Engines, c.Gateway.Admin = []string{"http://127.0.0.1:1"}, "192.0.2.1:80"
	if _, err := StartStaticGateway(t.Context(), quiet(), c); !errors.Is(err, admin.ErrPublic) {
		t.Errorf("got %v, want ErrPublic", err)
	}
}

func TestAGatewayServesEnginesByURL(t *testing.T) {
	first, second, other := startAlone(t, "m"), startAlone(t, "m"), startAlone(t, "n")
	defer end(t, second.Close)
	defer end(t, other.Close)
	c := settings(t)
	for _, w := range []*Worker{first, second, other} {
		c.Gateway.Engines = append(c.Gateway.Engines, w.Self().URL+"/")
	}
	c.Gateway.Engines = append(c.Gateway.Engines, "http://127.0.0.1:1") // nobody there, yet
	g, err := StartStaticGateway(t.Context(), quiet(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer end(t, g.Close)
	for _, model := range []string{"m", "n"} {
		if status := completion(t, g.URL(), model); status != http.StatusOK {
			t.Errorf("model %s: status %d", model, status)
		}
	}
	if status := completion(t, g.URL(), "x"); status != http.StatusNotFound {
		t.Errorf("unknown model: status %d", status)
	}
	end(t, first.Close)
	for range 4 {
		if status := completion(t, g.URL(), "m"); status != http.StatusOK {
			t.Errorf("with one of two engines gone: status %d", status)
		}
	}
}

func TestAGatewayNeedsEngines(t *testing.T) {
	if _, err := StartStaticGateway(t.Context(), quiet(), settings(t)); err == nil {
		t.Error("no error")
	}
}
