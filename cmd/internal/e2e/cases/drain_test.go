package cases

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/gpu/engine/scripted"
)

// Case 32. Symptom: scaling down kills streams a few seconds after SIGTERM.
// Right: readiness goes off, nothing new is taken, what runs is finished within
// the deadline; the exit code is 0.
func TestStreamsOutliveSIGTERM(t *testing.T) {
	t.Parallel()
	e := one(t, `rules: [{match: {route: /v1/*, method: POST}, do: {generate: {tokens: 8, first_token: 200ms, token: 200ms}}}]`)
	p := serveProcess(t, []*scripted.Engine{e}, "--unready-time", "1s", "--drain-timeout", "60s")
	c := newClient(t)
	const streams = 10
	done := make(chan []reply, 1)
	go func() {
		done <- together(2*streams, func(i int) reply {
			return ask(t.Context(), c, p.url+completionPath, []string{promptSSE, prompt}[i%2])
		})
	}()
	until(t, e, "all requests", func(_ scripted.Counters, r []scripted.Record) bool { return posts(r) == 2*streams })
	p.terminate(t)
	eventually(t, "readiness is off", func() bool {
		status := statusOf(t, c, p.url+"/readyz")
		return status == http.StatusServiceUnavailable || status == 0
	})
	wantGood(t, <-done...)
	if code := p.wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if status := statusOf(t, newClient(t), p.url+"/livez"); status != 0 {
		t.Errorf("it still answers: status %d", status)
	}
	for _, r := range asked(e) {
		if r.Outcome != scripted.Served {
			t.Errorf("a request ended as %s", r.Outcome)
		}
	}
}

// statusOf is the status of a GET; 0 when nobody answers.
func statusOf(t *testing.T, c *http.Client, url string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode
}

// Case 32: what does not end in time is told and cut, and the engine stops. A
// second signal means now. Nobody takes a part for the whole.
func TestTheDeadlineAndTheSecondSignalEndStreamsProperly(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		drain  string
		second bool
	}{"deadline": {"300ms", false}, "second SIGTERM": {"1h", true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := one(t, `rules: [{match: {route: /v1/*, method: POST}, do: {generate: {tokens: 9, stall: {after: 3}}}}]`)
			p := serveProcess(t, []*scripted.Engine{e}, "--drain-timeout", tt.drain)
			c := newClient(t)
			const requests = 8
			done := make(chan []reply, 1)
			go func() {
				done <- together(requests, func(i int) reply {
					return ask(t.Context(), c, p.url+completionPath, []string{promptSSE, prompt}[i%2])
				})
			}()
			until(t, e, "all requests", func(_ scripted.Counters, r []scripted.Record) bool { return posts(r) == requests })
			eventually(t, "all have tokens", func() bool { return e.Load().OutputTokens >= requests*3 })
			p.terminate(t)
			if tt.second {
				eventually(t, "it drains", func() bool { return statusOf(t, newClient(t), p.url+"/readyz") != http.StatusOK })
				p.terminate(t)
			}
			start := time.Now()
			code := p.wait(t)
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("it took %v to end", took)
			}
			t.Logf("exit code %d", code)
			for i, r := range <-done {
				if i%2 == 0 && r.end() != failed {
					t.Errorf("stream %d: %s, err %v: %s", i, r.end(), r.err, r.body)
				}
				if i%2 == 1 {
					wantRefusal(t, r, http.StatusServiceUnavailable)
				}
			}
			until(t, e, "all aborted", func(c scripted.Counters, _ []scripted.Record) bool { return c.Aborted == requests })
		})
	}
}

// An idle gateway ends at once.
func TestAnIdleGatewayEndsAtOnce(t *testing.T) {
	t.Parallel()
	p := serveProcess(t, several(t, 1, ""))
	c := newClient(t) // with a connection that it keeps
	if status := statusOf(t, c, p.url+"/readyz"); status != http.StatusOK {
		t.Fatalf("not ready: status %d", status)
	}
	wantGood(t, ask(t.Context(), c, p.url+chatPath, chat))
	p.terminate(t)
	start := time.Now()
	if code := p.wait(t); code != 0 || time.Since(start) > 10*time.Second {
		t.Errorf("exit code %d after %v", code, time.Since(start))
	}
	if strings.Contains(p.logs.String(), "panic") {
		t.Error("it panicked")
	}
}
