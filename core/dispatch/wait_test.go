package dispatch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
)

// waits is a configuration that lets requests wait.
func waits() Config {
	return Config{Deadlines: Deadlines{Queue: 20 * time.Second, Hold: 5 * time.Second}}
}

// Requests that come before the first worker are held until it is there.
func TestColdStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, waits())
		began := time.Now()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if o := y.serve(t.Context(), shortStream, &sink{}); o.Name != "ok" {
					t.Errorf("%s: %v", o.Name, o.Err)
				}
			})
		}
		time.Sleep(3 * time.Second)
		y.setWorkers(2, fleet.Worker{ID: "w"})
		wg.Wait()
		if took := time.Since(began); took > 3200*time.Millisecond {
			t.Errorf("took %v", took)
		}
		y.balanced()
	})
}

// What there is and what there is not are told apart, and by when.
func TestWhyARequestIsNotServed(t *testing.T) {
	hang := script{status: 200, body: []part{{hang: true}}}
	full := fleet.Capacity{MaxRunning: 1} // and one to go on with
	tests := []struct {
		name     string
		workers  []fleet.Worker
		busy     int // requests that hang on each worker
		body     string
		status   int
		code     string
		after    time.Duration
		noWaiter bool
	}{
		{"no worker", nil, 0, shortStream, 503, "no_capacity", 5 * time.Second, false},
		{"prefill workers only", []fleet.Worker{{ID: "w", Role: fleet.RolePrefill}}, 0, shortStream, 503, "no_capacity", 5 * time.Second, false},
		{"unknown model", []fleet.Worker{{ID: "w"}}, 0, `{"model":"other"}`, 404, "model_not_found", 0, false},
		{"all drain", []fleet.Worker{{ID: "w", Draining: true}}, 0, shortStream, 503, "no_capacity", 5 * time.Second, false},
		{"all are full", []fleet.Worker{{ID: "w", Capacity: full}}, 2, shortStream, 429, "queue_timeout", 20 * time.Second, false},
		{"the queue is full", []fleet.Worker{{ID: "w", Capacity: full}}, 3, shortStream, 429, "queue_full", 0, false},
		{"none states a limit", []fleet.Worker{{ID: "w"}}, 9, shortStream, 0, "", time.Second, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := waits()
				cfg.MaxWaiting = 1
				y := newYard(t, cfg, tt.workers...)
				ctx, cancel := context.WithCancel(t.Context())
				y.plays(map[fleet.WorkerID]script{"w": hang})
				var wg sync.WaitGroup
				for range tt.busy {
					wg.Go(func() { y.serve(ctx, shortStream, &sink{}) })
					synctest.Wait()
				}
				mine, stop := context.WithCancel(t.Context())
				if tt.status == 0 {
					time.AfterFunc(tt.after, stop)
				}
				began := time.Now()
				o := y.serve(mine, tt.body, &sink{})
				stop()
				if took := time.Since(began); took < tt.after || took > tt.after+100*time.Millisecond {
					t.Errorf("answered after %v", took)
				}
				switch {
				case tt.status == 0:
					if o.Name != "canceled" {
						t.Errorf("%s: %v", o.Name, o.Err)
					}
				case o.Status != tt.status || o.Err.Code != tt.code || o.Err.RetryAfter <= 0 && tt.status != 404:
					t.Errorf("%d %v", o.Status, o.Err)
				}
				cancel()
				wg.Wait()
				y.balanced()
			})
		})
	}
}

// The client is told what is missing.
func TestWhatIsMissing(t *testing.T) {
	others := `{"model":"other","stream":true}`
	for _, tt := range []struct {
		workers []fleet.Worker
		body    string
		want    string
	}{
		{nil, shortStream, "nobody is there"},
		{[]fleet.Worker{{ID: "w", Role: fleet.RolePrefill}}, shortStream, "no decode worker for this model is up, only prefill workers"},
		{[]fleet.Worker{{ID: "w", Draining: true}}, shortStream, "every worker for this model is draining"},
		{[]fleet.Worker{{ID: "w"}}, others, `the model "other" does not exist; served: "m"`},
		{[]fleet.Worker{{ID: "w"}}, shortStream, unreachable},
	} {
		y := newYard(t, Config{Absent: "nobody is there"}, tt.workers...)
		y.play = func(fleet.WorkerID, *engine.Call) script { return script{err: engine.ErrConnect} }
		if o := y.serve(t.Context(), tt.body, &sink{}); o.Err == nil || o.Err.Client != tt.want {
			t.Errorf("%v, want %s", o.Err, tt.want)
		}
	}
}

// However often a request is offered in between, it is held no longer than it
// may be.
func TestHoldIsOfTheWholeRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := waits()
		cfg.Eject.First, cfg.Eject.Longest = 3*time.Second, 3*time.Second
		y := newYard(t, cfg, fleet.Worker{ID: "w"})
		y.play = func(fleet.WorkerID, *engine.Call) script { return script{err: engine.ErrConnect} }
		began := time.Now()
		o := y.serve(t.Context(), shortStream, &sink{})
		if took := time.Since(began); o.Status != 503 || took > 5100*time.Millisecond {
			t.Errorf("%d %v after %v", o.Status, o.Err, took)
		}
		if n := len(y.called()); n < 2 {
			t.Errorf("offered %d times", n)
		}
		y.balanced()
	})
}

// Who waits is served in order as places become free, and who leaves leaves at
// once.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, waits(), fleet.Worker{ID: "w", Capacity: fleet.Capacity{MaxRunning: 1}})
		y.play = func(fleet.WorkerID, *engine.Call) script {
			s := good()
			s.body[1] = part{text: evHi, after: time.Second}
			return s
		}
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		stays := t.Context()
		left, leave := context.WithCancel(stays)
		for i := range 8 {
			wg.Go(func() {
				ctx := stays
				if i == 4 {
					ctx = left
				}
				began := time.Now()
				o := y.serve(ctx, shortStream, &sink{})
				if i == 4 {
					if o.Name != "canceled" || time.Since(began) > 600*time.Millisecond {
						t.Errorf("who left: %s after %v", o.Name, time.Since(began))
					}
					return
				}
				if o.Name != "ok" {
					t.Errorf("%d: %v", i, o.Err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
			})
			synctest.Wait()
		}
		time.Sleep(500 * time.Millisecond)
		leave()
		synctest.Wait()
		if n := y.d.lobby.Waiting(); n != 5 {
			t.Errorf("%d wait", n)
		}
		wg.Wait()
		for i := 2; i < len(order); i++ { // two run at a time
			if order[i] < order[i-2] {
				t.Errorf("served %v", order)
			}
		}
		y.balanced()
	})
}

// A worker that gives no tokens is passed by, whatever its health says, and its
// first token puts it back.
func TestSilentWorkerIsPassedBy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, waits(), fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"})
		stuck := true
		y.play = func(w fleet.WorkerID, _ *engine.Call) script {
			if w == "a" && stuck {
				return script{status: 200, body: []part{{text: evRole}, {hang: true}}}
			}
			return good()
		}
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for y.d.Load().InFlight() == 0 { // until one hangs on a
			wg.Go(func() { y.serve(ctx, shortStream, &sink{}) })
			synctest.Wait()
		}
		time.Sleep(6 * time.Second)
		served := func(n int) (onA int) {
			for range n {
				c, stop := context.WithTimeout(t.Context(), time.Second)
				if o := y.serve(c, shortStream, &sink{}); o.Placement.Serve == "a" {
					onA++
				}
				stop()
			}
			return onA
		}
		if n := served(30); n != 0 {
			t.Errorf("%d of 30 went to a worker without tokens", n)
		}
		if got := y.counter(measure.Ejections); got != 1 {
			t.Errorf("counted %v times", got)
		}
		y.mu.Lock()
		stuck = false
		y.mu.Unlock()
		cancel()
		wg.Wait()
		if n := served(40); n < 2 {
			t.Errorf("%d of 40 went to a worker that is well again", n)
		}
		y.balanced()
	})
}

// A long prompt is no silence.
func TestLongPromptIsNotSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, waits(), fleet.Worker{ID: "a"})
		y.plays(map[fleet.WorkerID]script{"a": {status: 200, body: []part{{hang: true}}}})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { y.serve(ctx, long(), &sink{}) }) // 1,000 tokens at 100 tokens/s, at the slowest
		slot := func() bool { return y.d.table.Columns(y.view).Slots[0].Doubted(time.Now()) }
		time.Sleep(14 * time.Second)
		if slot() {
			t.Error("doubted while the prompt is computed")
		}
		time.Sleep(2 * time.Second)
		if !slot() {
			t.Error("not doubted long after")
		}
		cancel()
		wg.Wait()
	})
}

// A client that does not read makes nobody doubt the worker.
func TestSlowClientIsNotSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, waits(), fleet.Worker{ID: "a"})
		s := sink{write: func([]byte) { time.Sleep(20 * time.Second) }}
		var wg sync.WaitGroup
		wg.Go(func() { y.serve(t.Context(), shortStream, &s) })
		time.Sleep(15 * time.Second)
		if y.d.table.Columns(y.view).Slots[0].Doubted(time.Now()) {
			t.Error("doubted")
		}
		wg.Wait()
	})
}

// An unreachable worker comes back when a probe reaches it, not when its
// ejection runs out.
func TestHeal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := waits()
		cfg.Eject.First = time.Minute
		y := newYard(t, cfg, fleet.Worker{ID: "w"})
		y.plays(map[fleet.WorkerID]script{"w": {err: errDial}})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var up atomic.Bool
		probes := 0
		y.d.deps.Reach = func(context.Context, *fleet.Worker) error {
			probes++
			if !up.Load() {
				return errors.New("refused")
			}
			return nil
		}
		wg.Go(func() {
			y.d.Heal(ctx, 200*time.Millisecond)
		})
		var o Outcome
		began := time.Now()
		wg.Go(func() { o = y.serve(t.Context(), shortStream, &sink{}) })
		time.Sleep(900 * time.Millisecond)
		y.plays(map[fleet.WorkerID]script{"w": good()})
		up.Store(true)
		time.Sleep(300 * time.Millisecond)
		cancel()
		wg.Wait()
		if o.Name != "ok" || time.Since(began) > 1200*time.Millisecond || probes > 6 {
			t.Errorf("%s (%v) after %v and %d probes", o.Name, o.Err, time.Since(began), probes)
		}
		y.balanced()
	})
}

// Retries are a share of the requests, however bad the fleet is, and clients are
// told not to add theirs.
func TestRetryBudget(t *testing.T) {
	y := newYard(t, Config{RetryShare: -1}, fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"})
	y.play = func(fleet.WorkerID, *engine.Call) script { return refusing(429, "") }
	for range 10 {
		if o := y.serve(t.Context(), shortStream, &sink{}); o.Status != 429 {
			t.Errorf("%d %v", o.Status, o.Err)
		}
	}
	if n := len(y.called()); n != 10 || y.counter(measure.RetriesRefused) != 10 {
		t.Errorf("%d calls, %v retries refused", n, y.counter(measure.RetriesRefused))
	}
	y = newYard(t, Config{}, fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"})
	y.play = func(fleet.WorkerID, *engine.Call) script { return refusing(429, "") }
	var s sink
	if y.serve(t.Context(), shortStream, &s); !s.head.NoRetry {
		t.Error("a client may repeat what two workers have refused")
	}
	y.play = func(fleet.WorkerID, *engine.Call) script { return script{err: errDial} }
	if o := y.serve(t.Context(), shortStream, &sink{}); o.Err == nil || !o.Err.NoRetry {
		t.Errorf("%+v", o.Err)
	}
}

// Faults of requests and busy workers leave the workers in service.
func TestRefusalsAreNoFaults(t *testing.T) {
	for _, status := range []int{400, 404, 413, 422, 429} {
		y := newYard(t, Config{}, fleet.Worker{ID: "w"})
		y.plays(map[fleet.WorkerID]script{"w": refusing(status, "")})
		for range 50 {
			y.serve(t.Context(), shortStream, &sink{})
		}
		y.plays(map[fleet.WorkerID]script{"w": good()})
		if o := y.serve(t.Context(), shortStream, &sink{}); o.Name != "ok" {
			t.Errorf("after 50 × %d: %v", status, o.Err)
		}
	}
}

// A prefill worker that cannot have told the decode worker of its failure leaves
// no decode leg waiting; one that gives output keeps it.
func TestLostPrefill(t *testing.T) {
	waiting := script{status: 200, body: []part{{hang: true}}}
	for name, p := range map[string]script{
		"connect": {err: errDial},
		"broken":  {err: fmt.Errorf("%w: reset", engine.ErrBroken)},
		"stale":   refusing(421, "stale_epoch"),
		"500":     refusing(500, ""),
	} {
		for kind, d := range map[string]script{"before the status": {hang: true}, "before output": waiting, "after the role": {status: 200, body: []part{{text: ": wait\n\n"}, {hang: true}}}} {
			for _, body := range []string{long(), `{"model":"m","prompt":` + long()[len(`{"model":"m","stream":true,"prompt":`):]} {
				t.Run(name+" "+kind, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						y := pairOf(t)
						y.play = func(w fleet.WorkerID, c *engine.Call) script {
							switch {
							case w == "p":
								return p
							case c.Leg == engine.Decode && c.Stream:
								return d
							case c.Leg == engine.Decode:
								return script{hang: true}
							case c.Stream:
								return good()
							}
							return script{status: 200, plain: true, body: []part{{text: goodAnswer}}}
						}
						began := time.Now()
						o := y.serve(t.Context(), body, &sink{})
						if o.Name != "ok" || time.Since(began) > 0 {
							t.Errorf("%s (%v) after %v", o.Name, o.Err, time.Since(began))
						}
						if o.Placement.Path != "aggregated" || o.Placement.PrefillFault == "" || o.Err != nil && o.Err.Kind == errs.Timeout {
							t.Errorf("%s, fault %q", o.Placement, o.Placement.PrefillFault)
						}
						y.balanced()
					})
				})
			}
		}
	}
}
