package cases

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/gpu/engine/scripted"
)

// ownFleet is a fleet that a test registers by hand, as a planner would know it.
type ownFleet struct {
	mu      sync.Mutex
	workers []fleet.Worker
	view    atomic.Pointer[fleet.View]
}

func newFleet() *ownFleet {
	f := &ownFleet{}
	f.view.Store(fleet.NewView(0, nil))
	return f
}

func (f *ownFleet) View() *fleet.View     { return f.view.Load() }
func (*ownFleet) Samples() *fleet.Samples { return nil }
func (*ownFleet) Events() *prefix.Table   { return nil }

// Answers is true: who registered is taken to be there.
func (*ownFleet) Answers(fleet.WorkerID) bool { return true }

// register makes e known as a worker with that name and role.
func (f *ownFleet) register(id string, role fleet.Role, e *scripted.Engine, change ...func(*fleet.Worker)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	epoch := fleet.Epoch(f.view.Load().Index + 1)
	e.SetEpoch(epoch)
	w := fleet.Worker{
		ID: fleet.WorkerID(id), Epoch: epoch, Incarnation: fmt.Sprint(id, epoch), Role: role, Engine: "scripted",
		Models: []string{"scripted"}, URL: e.URL(), Transfer: e.Addr(), Compat: "scripted",
	}
	for _, c := range change {
		c(&w)
	}
	kept := f.workers[:0:0]
	for i := range f.workers {
		if f.workers[i].ID != w.ID {
			kept = append(kept, f.workers[i])
		}
	}
	kept = append(kept, w)
	f.workers = kept
	f.publish()
}

// remove forgets a worker, as the end of its lease does.
func (f *ownFleet) remove(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	kept := f.workers[:0:0]
	for i := range f.workers {
		if string(f.workers[i].ID) != id {
			kept = append(kept, f.workers[i])
		}
	}
	f.workers = kept
	f.publish()
}

func (f *ownFleet) publish() {
	f.view.Store(fleet.NewView(f.view.Load().Index+1, append([]fleet.Worker(nil), f.workers...)))
}

func pairs(c *config.Gateway) { c.Disaggregate, c.Explain = "always", true }

// Case 29. Symptom: the prefill leg fails, nobody says so, and the decode leg
// waits for KV that never comes. Right: whatever becomes of the prefill leg, the
// client has its whole answer soon; no transfer is waited for to its time-out.
func TestAFailedPrefillLegDoesNotHoldTheAnswerUp(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]string{
		"status 500": `error: {kind: internal}`, "status 400": `error: {kind: context}`, "busy": `error: {kind: busy}`, "rate limit": `error: {kind: rate_limit}`,
		"cut": `cut: {at: 5, how: reset}`, "closed": `hang: {when: before_headers, for: 10ms}`, "dies": `die: {}`, "not HTTP": `raw: {text: "no\r\n"}`,
	} {
		for _, body := range []string{promptSSE, prompt} {
			t.Run(fmt.Sprintf("%s/%d", name, len(body)), func(t *testing.T) {
				t.Parallel()
				p, d := one(t, `rules: [{match: {route: /v1/*, leg: prefill}, do: {`+do+`}}]`), one(t, "")
				f := newFleet()
				f.register("p", fleet.RolePrefill, p)
				f.register("d", fleet.RoleDecode, d)
				g := serveFleet(t, f, pairs)
				want := ask(t.Context(), newClient(t), d.URL()+completionPath, prompt)
				start := time.Now()
				r := g.ask(completionPath, body)
				wantGood(t, r)
				if r.text() != want.text() || r.text() == "" {
					t.Errorf("text %q, want %q", r.text(), want.text())
				}
				// The decode side's own patience is 30 s.
				if took := time.Since(start); took > 10*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		}
	}
}

// Case 29, the other side: a decode leg that fails ends its prefill leg.
func TestAFailedDecodeLegEndsItsPrefillLeg(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]string{
		"status 500": `error: {kind: internal}`, "status 400": `error: {kind: context}`, "closed": `hang: {when: before_headers, for: 50ms}`,
		"closed after its headers": `hang: {when: after_headers, for: 50ms}`, "dies": `die: {}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := one(t, `rules: [{match: {route: /v1/*, leg: prefill}, do: {generate: {first_token: 1h}}}]`)
			d := one(t, `rules: [{match: {route: /v1/*, leg: decode}, do: {delay: 100ms, `+do+`}}]`)
			f := newFleet()
			f.register("p", fleet.RolePrefill, p)
			f.register("d", fleet.RoleDecode, d)
			g := serveFleet(t, f, pairs, func(c *config.Gateway) { c.HoldTime = 0 })
			if r := g.ask(completionPath, promptSSE); r.good() || r.status < 400 && r.end() == lie {
				t.Errorf("status %d, %s: %s", r.status, r.end(), r.body)
			}
			until(t, p, "its end", func(c scripted.Counters, _ []scripted.Record) bool { return c.Received > 0 && c.InFlight == 0 })
		})
	}
}

// Case 29: a client that leaves ends both legs.
func TestALeavingClientEndsBothLegs(t *testing.T) {
	t.Parallel()
	for _, body := range []string{promptSSE, prompt} {
		t.Run(strconv.Itoa(len(body)), func(t *testing.T) {
			t.Parallel()
			p, d := one(t, `rules: [{match: {route: /v1/*}, do: {generate: {first_token: 1h}}}]`), one(t, "")
			f := newFleet()
			f.register("p", fleet.RolePrefill, p)
			f.register("d", fleet.RoleDecode, d)
			g := serveFleet(t, f, pairs)
			c := rawPost(t, g, completionPath, body)
			until(t, p, "the prefill leg", func(_ scripted.Counters, r []scripted.Record) bool { return posts(r) == 1 })
			until(t, d, "the decode leg", func(_ scripted.Counters, r []scripted.Record) bool { return posts(r) == 1 })
			_ = c.Close()
			until(t, p, "the abort", func(c scripted.Counters, _ []scripted.Record) bool { return c.Aborted == 1 })
			until(t, d, "the abort", func(c scripted.Counters, r []scripted.Record) bool { return c.InFlight == 0 && c.Received >= 1 })
		})
	}
}

// Case 31. Symptom: disaggregation is silently off, or an incompatible pair
// crashes. Right: only compatible workers are paired, and each request says
// which path it took and why.
func TestIncompatibleWorkersAreNotPairedAndTheReasonIsTold(t *testing.T) {
	t.Parallel()
	none := func(*fleet.Worker) {}
	for name, tt := range map[string]struct {
		prefill func(*fleet.Worker)
		path    string
		reason  string
	}{
		"compatible":         {none, "disaggregated", "forced"},
		"another layout":     {func(w *fleet.Worker) { w.Compat = "scripted/block=32" }, "aggregated", "no_prefill_worker"},
		"unknown layout":     {func(w *fleet.Worker) { w.Compat = "" }, "aggregated", "no_prefill_worker"},
		"another model":      {func(w *fleet.Worker) { w.Models = []string{"other"} }, "aggregated", "no_prefill_worker"},
		"it drains":          {func(w *fleet.Worker) { w.Draining = true }, "aggregated", "no_prefill_worker"},
		"not a prefill role": {func(w *fleet.Worker) { w.Role, w.Draining = fleet.RoleDecode, true }, "aggregated", "no_prefill_worker"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, d := one(t, ""), one(t, "")
			f := newFleet()
			f.register("p", fleet.RolePrefill, p, tt.prefill)
			f.register("d", fleet.RoleDecode, d)
			g := serveFleet(t, f, pairs)
			r := g.ask(completionPath, promptSSE)
			wantGood(t, r)
			placed := r.header.Get("X-Yardmaster-Path")
			if !strings.HasPrefix(placed, tt.path+";") || !strings.Contains(placed, "reason="+tt.reason) {
				t.Errorf("placed %q, want %s because of %s", placed, tt.path, tt.reason)
			}
			if g.metric(measure.Paths, tt.path, tt.reason) != 1 {
				t.Error("the path is not counted")
			}
			if n := len(asked(p)); (n > 0) != (tt.path == "disaggregated") {
				t.Errorf("the prefill worker saw %d requests", n)
			}
		})
	}
}

// Case 24 and 30, behind the same address: a worker that has restarted is
// another one. Right: a stale epoch is refused before any work and the request
// goes where it can be served.
func TestARestartedWorkerIsAnotherOne(t *testing.T) {
	t.Parallel()
	a, b := one(t, ""), one(t, "")
	f := newFleet()
	f.register("a", fleet.RoleBoth, a)
	f.register("b", fleet.RoleBoth, b)
	g := serveFleet(t, f)
	wantGood(t, lanes(10, 2, func(i int) reply { return g.ask(completionPath, unlike(i, "")) })...)
	if err := a.Restart(t.Context()); err != nil { // same port, nobody has told the fleet
		t.Fatal(err)
	}
	wantGood(t, lanes(30, 4, func(i int) reply { return g.ask(completionPath, unlike(50+i, "")) })...)
	f.register("a", fleet.RoleBoth, a)
	a.ResetRecords()
	eventually(t, "it serves again", func() bool {
		wantGood(t, g.ask(completionPath, unlike(int(time.Now().UnixNano()%1_000_000), "")))
		return len(asked(a)) > 0
	})
}

// limited is a worker that computes so many requests at once.
func limited(n int) func(*fleet.Worker) {
	return func(w *fleet.Worker) { w.Capacity.MaxRunning = n }
}

// Case 35. Symptom: a cold start gives 400 or 503; the request that would wake
// the model is lost. Right: requests for a known model wait for its first worker
// and are all served; what waits in vain gets 503 with retry-after; an unknown
// model is a 404 at once.
func TestRequestsWaitForTheFirstWorker(t *testing.T) {
	t.Parallel()
	e := one(t, "")
	f := newFleet()
	g := serveFleet(t, f, func(c *config.Gateway) { c.HoldTime = patience; c.Models = []string{"scripted"} })
	done := make(chan []reply, 1)
	const held = 50
	go func() {
		done <- together(held, func(i int) reply { return g.ask(completionPath, unlike(i, []string{"", `,"stream":true`}[i%2])) })
	}()
	eventually(t, "all wait", func() bool { return g.metric(measure.RequestsInFlight) == held })
	f.register("w", fleet.RoleBoth, e)
	wantGood(t, <-done...)
	if n := len(asked(e)); n != held {
		t.Errorf("the engine saw %d requests for %d", n, held)
	}
	if r := g.ask(completionPath, `{"model":"nobody-knows","prompt":"x"}`); r.status != http.StatusNotFound {
		t.Errorf("unknown model: status %d, %s", r.status, r.body)
	}
	f.remove("w") // scaled to zero: known all the same
	again := make(chan reply, 1)
	go func() { again <- g.ask(completionPath, prompt) }()
	eventually(t, "it waits", func() bool { return g.metric(measure.RequestsInFlight) == 1 })
	f.register("w", fleet.RoleBoth, e)
	wantGood(t, <-again)
}

// Case 36. Symptom: an empty pool looks like a saturated one. Right: 503 when
// there is no capacity, 429 when there is and it is busy, each with its reason
// and retry-after; a client that cannot know is never told the wrong one.
func TestNoCapacityIsNotContention(t *testing.T) {
	t.Parallel()
	waits := func(c *config.Gateway) {
		c.QueueTime, c.HoldTime, c.Models = 300*time.Millisecond, 300*time.Millisecond, []string{"scripted"}
	}
	tests := []struct {
		name   string
		setup  func(t *testing.T, f *ownFleet)
		change func(*config.Gateway)
		status int
	}{
		{"no worker", func(*testing.T, *ownFleet) {}, waits, http.StatusServiceUnavailable},
		{"worker left", func(t *testing.T, f *ownFleet) {
			f.register("w", fleet.RoleBoth, one(t, ""))
			f.remove("w")
		}, waits, http.StatusServiceUnavailable},
		{"worker dead", func(t *testing.T, f *ownFleet) {
			e := one(t, "")
			f.register("w", fleet.RoleBoth, e)
			if err := e.Kill(); err != nil {
				t.Fatal(err)
			}
		}, waits, http.StatusServiceUnavailable},
		{"worker drains", func(t *testing.T, f *ownFleet) {
			f.register("w", fleet.RoleBoth, one(t, ""), func(w *fleet.Worker) { w.Draining = true })
		}, waits, http.StatusServiceUnavailable},
		{"prefill only", func(t *testing.T, f *ownFleet) {
			f.register("w", fleet.RolePrefill, one(t, ""))
		}, waits, http.StatusServiceUnavailable},
		{"busy for too long", func(t *testing.T, f *ownFleet) {
			f.register("w", fleet.RoleBoth, one(t, stuck), limited(1))
		}, waits, http.StatusTooManyRequests},
		{"engine says busy", func(t *testing.T, f *ownFleet) {
			f.register("w", fleet.RoleBoth, one(t, `rules: [{match: {route: /v1/*}, do: {error: {kind: rate_limit}}}]`))
		}, waits, http.StatusTooManyRequests},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet()
			tt.setup(t, f)
			g := serveFleet(t, f, tt.change)
			if strings.HasPrefix(tt.name, "busy") {
				for range 2 { // who computes one at a time may have one more to go on with
					defer rawPost(t, g, completionPath, promptSSE).Close() //nolint:errcheck // it leaves
				}
				eventually(t, "the places are taken", func() bool { return g.metric(measure.WorkerInFlight) == 2 })
			}
			r := g.ask(completionPath, prompt)
			wantRefusal(t, r, tt.status)
			if r.header.Get("Retry-After") == "" || r.header.Get("X-Yardmaster-Reason") == "" || r.header.Get("X-Should-Retry") == "" {
				t.Errorf("headers %v", r.header)
			}
		})
	}
}

// stuck computes for ever.
const stuck = `rules: [{match: {route: /v1/*, stream: true, method: POST}, do: {generate: {stall: {after: 0}}}}]`

// Case 36, and the queue's own bound: what waits is served in time; what cannot
// even wait is told at once; and a full queue is contention.
func TestAFullQueueIsContention(t *testing.T) {
	t.Parallel()
	e := one(t, `rules: [{match: {route: /v1/*, method: POST}, do: {generate: {tokens: 2, first_token: 200ms}}}]`)
	f := newFleet()
	f.register("w", fleet.RoleBoth, e, limited(2))
	g := serveFleet(t, f, func(c *config.Gateway) { c.QueueSize, c.QueueTime = 8, patience })
	served, refused := 0, 0
	for _, r := range together(60, func(i int) reply { return g.ask(completionPath, unlike(i, "")) }) {
		if r.good() {
			served++
			continue
		}
		refused++
		wantRefusal(t, r, http.StatusTooManyRequests)
	}
	if served < 8 || refused == 0 {
		t.Errorf("%d served, %d refused", served, refused)
	}
}

// Case 1, queued: a client that leaves while it waits reaches no engine, and
// holds nobody up who came after it.
func TestAClientThatLeavesTheQueueReachesNoEngine(t *testing.T) {
	t.Parallel()
	e := one(t, stuck)
	f := newFleet()
	f.register("w", fleet.RoleBoth, e, limited(1))
	g := serveFleet(t, f, func(c *config.Gateway) { c.QueueTime = patience })
	const clients = 30
	conns := make([]net.Conn, clients)
	for i := range conns {
		conns[i] = rawPost(t, g, completionPath, promptSSE)
		// One after the other, so that the first are those that compute.
		eventually(t, "the next one computes or waits", func() bool {
			return posts(e.Records(0))+int(g.metric(measure.Waiting)) == i+1
		})
	}
	computing := posts(e.Records(0))
	if computing >= clients/2 {
		t.Fatalf("%d requests reached an engine that computes one at a time", computing)
	}
	last := make(chan reply, 1)
	go func() { last <- g.ask(completionPath, prompt) }()
	eventually(t, "the last waits", func() bool { return g.metric(measure.RequestsInFlight) == clients+1 })
	for _, c := range conns[computing:] {
		_ = c.Close()
	}
	eventually(t, "those who left are gone", func() bool { return g.metric(measure.RequestsInFlight) <= float64(computing+1) })
	for _, c := range conns {
		_ = c.Close()
	}
	wantGood(t, <-last)
	if n := len(asked(e)); n != computing+1 {
		t.Errorf("the engine saw %d requests, want the %d before them and the last", n, computing)
	}
}
