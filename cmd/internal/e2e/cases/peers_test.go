package cases

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/gpu/engine/scripted"
)

// unlike is a completion that shares no prefix with another of another i.
func unlike(i int, extra string) string {
	return fmt.Sprintf(`{"model":"scripted","max_tokens":4%s,"prompt":"%s"}`, extra, unlikeText(i, 600))
}

// unlikeText is n bytes that differ from those of another i from the first on.
func unlikeText(i, n int) string {
	word := fmt.Sprintf("%06d question ", i*7919%1_000_000)
	return strings.Repeat(word, n/len(word)+1)[:n]
}

// Case 2. Symptom: one backend that hangs stalls all requests. Right: those that
// are with others are not touched, however many hang, and the ones that hang end
// at their deadline as such.
func TestAHungEngineHoldsNobodyElseUp(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]string{
		"accepts and never answers": `hang: {when: before_headers}`,
		"headers and no more":       `hang: {when: after_headers}`,
		"a few tokens":              `generate: {tokens: 9, stall: {after: 2}}`,
		"half an event":             `cut: {at: 50, how: hang}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hung := one(t, `rules: [{match: {route: /v1/comp*}, do: {`+do+`}}]`)
			fine := one(t, "")
			g := serve(t, []*scripted.Engine{hung, fine}, func(c *config.Gateway) {
				c.FirstTokenTimeout, c.IdleTimeout = 2*time.Second, 2*time.Second
			})
			var all sync.WaitGroup
			var mu sync.Mutex
			good, timedOut, other := 0, 0, []reply(nil)
			const n = 60
			for i := range n {
				all.Go(func() {
					r := g.ask(completionPath, unlike(i, `,"stream":true`))
					mu.Lock()
					defer mu.Unlock()
					switch {
					case r.good():
						good++
					case r.status == http.StatusGatewayTimeout, r.status == http.StatusOK && r.end() == failed:
						timedOut++
					default:
						other = append(other, r)
					}
				})
			}
			// All that went to the healthy engine are served while the others hang.
			eventually(t, "the healthy engine has served its share", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return good > 0 && good+len(asked(hung)) >= n
			})
			all.Wait()
			if good+timedOut != n || good < n/3 {
				t.Errorf("%d good, %d timed out, others %+v", good, timedOut, other)
			}
		})
	}
}

// Case 2: a peer that does not even accept is found out by connecting, and the
// request goes elsewhere.
func TestAPeerThatDoesNotAcceptCostsOneConnect(t *testing.T) {
	t.Parallel()
	fine := one(t, "")
	var lc net.ListenConfig
	dead, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	twin := one(t, "")
	g := serve(t, []*scripted.Engine{fine, twin})
	_ = dead.Close()
	if err := twin.Kill(); err != nil {
		t.Fatal(err)
	}
	wantGood(t, lanes(60, 8, func(i int) reply { return g.ask(completionPath, unlike(i, "")) })...)
	if n := g.metric(measure.Ejections); n < 1 || n > 20 {
		t.Errorf("the dead engine was ejected %v times for 60 requests", n)
	}
}

// Case 6. Symptom: sporadic 502, because the engine closes idle connections just
// when a request leaves on one. Right: no failure, and no request runs twice.
func TestEnginesThatCloseIdleConnections(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"idle_close: 30ms", "idle_close: 30ms, idle_reset: true"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			e := one(t, "server: {"+how+"}")
			g := serve(t, []*scripted.Engine{e})
			const calls = 400
			wantGood(t, lanes(calls, 8, func(i int) reply {
				// Around the moment when the server closes.
				time.Sleep(30*time.Millisecond + time.Duration(i%41-20)*100*time.Microsecond)
				return g.ask(completionPath, unlike(i, []string{"", `,"stream":true`}[i%2]))
			})...)
			seen := map[string]int{}
			for _, r := range asked(e) {
				seen[string(r.Body)]++
			}
			for body, n := range seen {
				if n > 1 {
					t.Errorf("a request ran %d times: %.80s", n, body)
				}
			}
			if len(seen) != calls {
				t.Errorf("the engine saw %d requests of %d", len(seen), calls)
			}
		})
	}
}

// Case 6: a request that an engine may have begun is never sent again: an answer
// that breaks off, at its status or later, is an error.
func TestARequestThatMayHaveBegunIsNotRepeated(t *testing.T) {
	t.Parallel()
	for _, do := range []string{
		`cut: {at: 10, how: reset}`, `cut: {at: 10, how: close}`, `raw: {text: "HTTP/1.1 2"}`, `hang: {when: before_headers, for: 50ms}`,
		`respond: {status: 500}`, `respond: {status: 502}`, `respond: {status: 504}`,
	} {
		t.Run(do, func(t *testing.T) {
			t.Parallel()
			engines := several(t, 3, `rules: [{match: {route: /v1/chat*}, do: {`+do+`}}]`)
			g := serve(t, engines)
			r := g.ask(chatPath, chat)
			wantRefusal(t, r, r.status)
			total := 0
			for _, e := range engines {
				total += len(asked(e))
			}
			if r.status < 500 || total != 1 {
				t.Errorf("status %d; the engines saw the request %d times", r.status, total)
			}
		})
	}
}

// Case 24. Symptom: a dead worker stays preferred, because its prefix is
// remembered. Right: the first connect error moves on; every new request is
// served, also those whose prefix only the dead one held.
func TestADeadWorkerIsNotPreferredForItsPrefix(t *testing.T) {
	t.Parallel()
	engines := several(t, 2, "")
	g := serve(t, engines)
	session := func(i int) string {
		return fmt.Sprintf(`{"model":"scripted","max_tokens":4,"prompt":"%s turn %d"}`, unlikeText(1, 4000), i)
	}
	for i := range 6 {
		wantGood(t, g.ask(completionPath, session(i)))
	}
	holder := 0
	if len(asked(engines[1])) > len(asked(engines[0])) {
		holder = 1
	}
	var all sync.WaitGroup
	all.Go(func() {
		time.Sleep(20 * time.Millisecond)
		if err := engines[holder].Kill(); err != nil {
			t.Error(err)
		}
	})
	// Some may be in the middle of an answer when it dies.
	broken := 0
	for _, r := range lanes(300, 4, func(i int) reply { return g.ask(completionPath, session(i)) }) {
		if !r.good() {
			broken++
			wantRefusal(t, r, http.StatusBadGateway)
		}
	}
	all.Wait()
	if broken > 4 {
		t.Errorf("%d requests failed; at most the 4 under way could", broken)
	}
	wantGood(t, lanes(40, 4, func(i int) reply { return g.ask(completionPath, session(i)) })...)
}

// Measured of other gateways: a restarted worker stays out 10 to 60 s. Right: it
// is back in service within about a second, with no probe to wait for.
func TestARestartedWorkerServesAgainSoon(t *testing.T) {
	t.Parallel()
	engines := several(t, 2, "")
	g := serve(t, engines)
	wantGood(t, lanes(8, 2, func(i int) reply { return g.ask(completionPath, unlike(i, "")) })...)
	if err := engines[0].Kill(); err != nil {
		t.Fatal(err)
	}
	wantGood(t, lanes(40, 4, func(i int) reply { return g.ask(completionPath, unlike(100+i, "")) })...)
	if err := engines[0].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	engines[0].ResetRecords()
	back := time.Now()
	for i := 0; len(asked(engines[0])) == 0; i++ {
		wantGood(t, g.ask(completionPath, unlike(200+i, "")))
		if time.Since(back) > 5*time.Second {
			t.Fatal("it gets no requests 5 s after its restart")
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("back in service after %v", time.Since(back))
}

// A worker that is the only one is asked even while it is ejected: a restart
// costs no more than the time it is away.
func TestTheOnlyWorkerIsBackAtOnce(t *testing.T) {
	t.Parallel()
	e := one(t, "")
	g := serve(t, []*scripted.Engine{e})
	wantGood(t, g.ask(completionPath, prompt))
	if err := e.Kill(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if r := g.at(ctx, completionPath, prompt); r.err == nil {
		wantRefusal(t, r, http.StatusServiceUnavailable)
		if r.header.Get("Retry-After") == "" || strings.Contains(r.body, e.Addr()) {
			t.Errorf("headers %v, %s", r.header, r.body)
		}
	}
	if err := e.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantGood(t, g.ask(completionPath, prompt))
}

// Case 25. Symptom: /health answers 200 while no tokens come, and the wedged
// engine, whose requests end soonest, gets all the next ones. Right: what does
// not progress is left out, until it does again.
func TestAnEngineWithoutProgressIsLeftOut(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]string{
		"no status": `hang: {when: before_headers}`, "no token": `hang: {when: after_headers}`, "no further token": `generate: {tokens: 9, stall: {after: 2}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wedged, fine := one(t, `rules: [{match: {route: /v1/comp*}, do: {`+do+`}}]`), one(t, "")
			g := serve(t, []*scripted.Engine{wedged, fine}, func(c *config.Gateway) {
				c.FirstTokenTimeout, c.IdleTimeout, c.SuspectTime = 300*time.Millisecond, 300*time.Millisecond, 100*time.Millisecond
			})
			bad := 0
			for i := range 40 {
				if !g.ask(completionPath, unlike(i, `,"stream":true`)).good() {
					bad++
				}
			}
			if bad > 6 {
				t.Errorf("%d of 40 requests one after another went to an engine that does not progress", bad)
			}
			play(t, wedged, "")
			wedged.ResetRecords()
			for start, i := time.Now(), 0; len(asked(wedged)) == 0; i++ {
				g.ask(completionPath, unlike(1000+i, `,"stream":true`))
				if time.Since(start) > patience {
					t.Fatal("it is left out for good")
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
}

// Case 25: a long prompt is no lack of progress.
func TestALongPrefillIsNotALackOfProgress(t *testing.T) {
	t.Parallel()
	e := one(t, `rules: [{match: {route: /v1/comp*}, do: {generate: {tokens: 3, first_token: 1s}}}]`)
	g := serve(t, []*scripted.Engine{e}, func(c *config.Gateway) { c.IdleTimeout = 100 * time.Millisecond })
	wantGood(t, together(8, func(i int) reply { return g.ask(completionPath, unlike(i, `,"stream":true`)) })...)
	wantGood(t, together(8, func(i int) reply { return g.ask(completionPath, unlike(i, "")) })...)
}

// Case 26. Symptom: faults of clients open the engine's breaker for everybody.
// Right: a 4xx, a 429 and a busy 503 say nothing against the engine.
func TestRefusalsAreNotTheEnginesFault(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]string{
		"context": `error: {kind: context}`, "flat context": `error: {kind: context, flat: true}`, "model": `error: {kind: model}`,
		"rate limit": `error: {kind: rate_limit}`, "busy": `error: {kind: busy}`, "unauthorized": `error: {status: 401, message: m, type: T}`,
		"too large": `respond: {status: 413}`, "unprocessable": `respond: {status: 422}`, "timeout of the client": `respond: {status: 408}`, "teapot": `respond: {status: 418}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := one(t, `rules: [{match: {route: /v1/comp*, body: faulty}, do: {`+do+`}}]`)
			g := serve(t, []*scripted.Engine{e})
			for i := range 50 {
				extra := []string{`,"user":"faulty"`, `,"user":"faulty","stream":true`}[i%2]
				if r := g.ask(completionPath, unlike(i, extra)); r.status < 400 || r.status == http.StatusBadGateway {
					t.Fatalf("status %d: %s", r.status, r.body)
				}
			}
			wantGood(t, lanes(10, 2, func(i int) reply { return g.ask(completionPath, unlike(i, "")) })...)
			if n := g.metric(measure.Ejections); n != 0 {
				t.Errorf("%v ejections", n)
			}
		})
	}
}

// Measured of vllm-router: with one busy and one idle worker it answers 429 for
// 20 of 20. Right: a refusal goes to the next worker; nobody hears of it.
func TestOneBusyWorkerOneIdleWorkerNoRefusals(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"busy", "rate_limit"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			busy := one(t, `rules: [{match: {route: /v1/*, method: POST}, do: {error: {kind: `+kind+`}}}]`)
			idle := one(t, "")
			g := serve(t, []*scripted.Engine{busy, idle})
			wantGood(t, lanes(80, 8, func(i int) reply { return g.ask(completionPath, unlike(i, []string{"", `,"stream":true`}[i%2])) })...)
		})
	}
}

// Case 12, measured of other gateways: the only worker's trouble is told without
// its address, once, and at once.
func TestTheOnlyWorkersTroubleIsToldOnce(t *testing.T) {
	t.Parallel()
	tests := []struct {
		do     string
		status int
	}{
		{`error: {kind: rate_limit, retry_after: "7"}`, http.StatusTooManyRequests},
		{`error: {kind: busy, retry_after: "7"}`, http.StatusServiceUnavailable},
		{`error: {kind: internal}`, http.StatusInternalServerError},
	}
	for _, tt := range tests {
		t.Run(tt.do, func(t *testing.T) {
			t.Parallel()
			e := one(t, `rules: [{match: {route: /v1/chat*}, do: {`+tt.do+`}}]`)
			g := serve(t, []*scripted.Engine{e})
			r := g.ask(chatPath, chat)
			wantRefusal(t, r, tt.status)
			if strings.Contains(tt.do, "retry_after") && (r.header.Get("Retry-After") != "7" || r.header.Get("X-Should-Retry") == "") {
				t.Errorf("headers %v", r.header)
			}
			if n := len(asked(e)); n != 1 {
				t.Errorf("the engine was asked %d times", n)
			}
		})
	}
}
