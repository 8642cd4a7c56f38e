package dispatch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
)

// A worker is lost before its client has anything, at each point where it may be:
// where calls may be repeated the request begins elsewhere, else it fails.
func TestLostBeforeOutput(t *testing.T) {
	reset := part{err: fmt.Errorf("%w: reset", engine.ErrBroken)}
	deaths := map[string]script{
		"before the status": {err: fmt.Errorf("%w: reset", engine.ErrBroken)},
		"after the status":  {status: 200, body: []part{reset}},
		"after a comment":   {status: 200, body: []part{{text: ": wait\n\n"}, reset}},
	}
	whole := strings.Replace(long(), `"stream":true`, `"stream":false`, 1)
	for body, text := range map[string]string{
		"stream": shortStream, "whole": shortWhole, "long stream": long(), "long whole": whole,
		"answers": `{"model":"m","stream":true,"n":2}`, "log probabilities": `{"model":"m","stream":true,"logprobs":true}`,
		"prompts": `{"model":"m","stream":true,"prompt":["a","b"]}`,
	} {
		for death, end := range deaths {
			for _, repeats := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s %s %v", body, death, repeats), func(t *testing.T) {
					y := newYard(t, Config{}, fleet.Worker{ID: "p", Role: fleet.RolePrefill},
						fleet.Worker{ID: "a", Role: fleet.RoleDecode}, fleet.Worker{ID: "b", Role: fleet.RoleDecode})
					y.repeats = repeats
					var served []fleet.WorkerID
					y.play = func(w fleet.WorkerID, c *engine.Call) script {
						if c.Leg == engine.Prefill {
							return script{status: 200, plain: true}
						}
						served = append(served, w)
						if len(served) == 1 {
							return end
						}
						if !c.Stream {
							return script{status: 200, plain: true, body: []part{{text: goodAnswer}}}
						}
						return good()
					}
					var got sink
					o := y.serve(t.Context(), text, &got)
					switch {
					case !repeats && (o.Err == nil || o.Status >= 300 && o.Status != 502 || len(served) != 1):
						t.Errorf("%d %v from %v", o.Status, o.Err, served)
					case repeats && (o.Err != nil || o.Name != "ok" || len(served) != 2 || served[0] == served[1]):
						t.Errorf("%s %v from %v", o.Name, o.Err, served)
					case repeats && strings.HasSuffix(body, "whole") && got.got.String() != goodAnswer:
						t.Errorf("got %q", got.got.String())
					case repeats && !strings.HasSuffix(body, "whole") && strings.Count(got.got.String(), "hi") != 3:
						t.Errorf("got %q", got.got.String())
					}
					y.balanced()
				})
			}
		}
	}
}

// Neither a request that breaks every worker nor an outage is repeated for ever.
func TestRepetitionIsBounded(t *testing.T) {
	for name, tt := range map[string]struct {
		cfg   Config
		calls int
	}{"attempts": {Config{Attempts: 3}, 3}, "budget": {Config{RetryShare: -1}, 1}} {
		y := newYard(t, tt.cfg, fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"}, fleet.Worker{ID: "c"}, fleet.Worker{ID: "d"})
		y.repeats = true
		y.play = func(fleet.WorkerID, *engine.Call) script {
			return script{err: fmt.Errorf("%w: reset", engine.ErrBroken)}
		}
		if o := y.serve(t.Context(), shortWhole, &sink{}); o.Status != 502 || o.Err.Code != codeBroken || len(y.called()) != tt.calls {
			t.Errorf("%s: %d %v after %v", name, o.Status, o.Err, y.called())
		}
		y.balanced()
	}
}

var errReset = fmt.Errorf("%w: reset", engine.ErrBroken)

// What a dispatcher knows of an engine when it loses a request.
const (
	unknown    = "of an unknown kind"
	continuing = "that takes tokens in"
	computing  = "that only computes"
)

// deaths are the points where an engine breaks off, each with whether the client
// has output by then.
var deaths = []struct {
	name   string
	cut    int // events; -1 is before the status
	output bool
}{
	{"before the status", -1, false},
	{"after the status", 0, false},
	{"after a comment", 1, false},
	{"after the role", 2, false},
	{"in its output", 4, true},
}

// newLossYard is a yard of workers of one kind, which has become known.
func newLossYard(t *testing.T, cfg Config, kind string, workers ...fleet.Worker) *yard {
	y := newYard(t, cfg, workers...)
	y.repeats = kind == computing
	for _, slot := range y.d.table.Columns(y.view).Slots {
		if kind == continuing {
			slot.Continuing()
		}
	}
	return y
}

// breakingOff plays an engine of a kind that breaks off at a point.
func breakingOff(kind string, at int, c *engine.Call) script {
	if at < 0 {
		return script{err: errReset}
	}
	if !c.Stream {
		return script{status: 200, plain: true, body: []part{{text: goodAnswer[:at*5]}, {err: errReset}}}
	}
	if gjson.GetBytes(c.Body, engine.ContinueField).Exists() {
		at = 0 // there is no role to send first
	}
	return (&teller{deaf: kind != continuing, cuts: []cut{{after: at}}}).play("", c)
}

// answering plays one that does not break off.
func answering(kind string, c *engine.Call) script {
	if !c.Stream {
		return script{status: 200, plain: true, body: []part{{text: goodAnswer}}}
	}
	return (&teller{deaf: kind != continuing}).play("", c)
}

// An engine breaks off once, wherever in its answer. Who is asked again, and
// whether the client notices, is what DESIGN.md says of repetition.
func TestBrokenOff(t *testing.T) {
	for _, kind := range []string{unknown, continuing, computing} {
		for _, death := range deaths {
			for _, stream := range []bool{true, false} {
				for _, workers := range []int{1, 2} {
					seen := death.output || death.name == "after the role"
					goesOn := kind == continuing && stream || kind == computing && (!stream || !seen)
					again := goesOn && (workers > 1 || stream && death.output)
					t.Run(fmt.Sprintf("engine %s, %s, stream %v, %d workers", kind, death.name, stream, workers), func(t *testing.T) {
						y := newLossYard(t, Config{}, kind, []fleet.Worker{{ID: "a"}, {ID: "b"}}[:workers]...)
						var asked []fleet.WorkerID
						y.play = func(w fleet.WorkerID, c *engine.Call) script {
							if asked = append(asked, w); len(asked) == 1 {
								return breakingOff(kind, death.cut, c)
							}
							return answering(kind, c)
						}
						body := shortWhole
						if stream {
							body = shortStream
						}
						var got sink
						o := y.serve(t.Context(), body, &got)
						switch {
						case again != (o.Err == nil) || again != (len(asked) == 2):
							t.Errorf("%v after %v, want another attempt: %v", o.Err, asked, again)
						case again && workers == 2 && asked[0] == asked[1]:
							t.Errorf("the same worker was asked twice: %v", asked)
						case o.Err != nil && (o.Err.Code != codeBroken || o.Status != 502 && !o.Begun):
							t.Errorf("%d %v", o.Status, o.Err)
						}
						text, _ := story(got.got.String())
						if stream && (o.Err == nil) != complete(got.got.String()) || !strings.HasPrefix(whole(), text) || o.Err == nil && stream && text != whole() {
							t.Errorf("%v, got %q", o.Err, got.got.String())
						}
						y.balanced()
					})
				}
			}
		}
	}
}

// A request that breaks every engine reaches each of them once at most, and no
// more of them than there are attempts and retries.
func TestBreakingEverything(t *testing.T) {
	for _, kind := range []string{unknown, continuing, computing} {
		for _, death := range deaths {
			if death.output {
				continue
			}
			for _, stream := range []bool{true, false} {
				for name, tt := range map[string]struct {
					cfg           Config
					workers, most int
				}{
					"one worker": {Config{}, 1, 1},
					"workers":    {Config{}, 2, 2},
					"attempts":   {Config{Attempts: 3}, 4, 3},
					"budget":     {Config{RetryShare: -1}, 4, 1},
				} {
					t.Run(fmt.Sprintf("%s: engine %s, %s, stream %v", name, kind, death.name, stream), func(t *testing.T) {
						y := newLossYard(t, tt.cfg, kind, []fleet.Worker{{ID: "a"}, {ID: "b"}, {ID: "c"}, {ID: "d"}}[:tt.workers]...)
						asked := map[fleet.WorkerID]int{}
						y.play = func(w fleet.WorkerID, c *engine.Call) script {
							asked[w]++
							return breakingOff(kind, death.cut, c)
						}
						body := shortWhole
						if stream {
							body = shortStream
						}
						o := y.serve(t.Context(), body, &sink{})
						if o.Err == nil || o.Err.Code != codeBroken || !o.Begun && o.Status != 502 {
							t.Errorf("%d %v", o.Status, o.Err)
						}
						if len(asked) > tt.most || kind == computing && death.cut < 2 && len(asked) != tt.most {
							t.Errorf("%v were asked, at most %d", asked, tt.most)
						}
						for w, n := range asked {
							if n > 1 {
								t.Errorf("%s was asked %d times", w, n)
							}
						}
						y.balanced()
					})
				}
			}
		}
	}
}

// An engine that breaks off because it dies is waited for: what comes after it at
// its address has broken nothing off.
func TestBrokenOffByDying(t *testing.T) {
	for _, stream := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			y := newLossYard(t, waits(), computing, fleet.Worker{ID: "w"})
			var up atomic.Bool
			y.d.deps.Reach = func(context.Context, *fleet.Worker) error {
				if !up.Load() {
					return errors.New("refused")
				}
				return nil
			}
			lost := false
			y.play = func(_ fleet.WorkerID, c *engine.Call) script {
				switch {
				case !lost:
					lost = true
					return script{err: errReset}
				case !up.Load():
					return script{err: errDial}
				}
				return answering(computing, c)
			}
			ctx, cancel := context.WithCancel(t.Context())
			healed := make(chan struct{})
			go func() {
				defer close(healed)
				y.d.Heal(ctx, 200*time.Millisecond)
			}()
			time.AfterFunc(300*time.Millisecond, func() { up.Store(true) })
			body := shortWhole
			if stream {
				body = shortStream
			}
			if o := y.serve(t.Context(), body, &sink{}); o.Err != nil || o.Duration > 1500*time.Millisecond {
				t.Errorf("stream %v: %v after %v", stream, o.Err, o.Duration)
			}
			cancel()
			<-healed
			y.balanced()
		})
	}
}

// While the only worker that has not lost the request is busy, it is waited for.
// When that one leaves, there is nobody to wait for.
func TestBrokenOffWhileOthersAreBusy(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			workers := []fleet.Worker{{ID: "a"}, {ID: "b", Capacity: fleet.Capacity{MaxRunning: 1}}}
			y := newLossYard(t, waits(), computing, workers...)
			busy := y.d.table.Columns(y.view).Slots[1]
			var running []*load.Reservation
			for !busy.Full() {
				running = append(running, busy.Reserve(load.Decode, load.Work{}))
			}
			y.play = func(w fleet.WorkerID, c *engine.Call) script {
				if w == "a" {
					return script{err: errReset}
				}
				return answering(computing, c)
			}
			time.AfterFunc(time.Second, func() {
				if leaves {
					y.setWorkers(2, workers[0])
				}
				for _, r := range running {
					r.Close()
				}
			})
			o := y.serve(t.Context(), shortWhole, &sink{})
			if leaves != (o.Err != nil) || leaves && o.Err.Code != codeBroken || o.Duration < time.Second || o.Duration > 1500*time.Millisecond {
				t.Errorf("leaves %v: %v after %v, %v", leaves, o.Err, o.Duration, y.called())
			}
			y.balanced()
		})
	}
}
