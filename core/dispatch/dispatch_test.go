package dispatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/wire/edge"
	"github.com/yardmaster/yardmaster/core/wire/eventstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDial = fmt.Errorf("%w: refused", engine.ErrConnect)

func TestStream(t *testing.T) {
	y := newYard(t, Config{}, fleet.Worker{ID: "w"})
	var s sink
	o := y.serve(t.Context(), shortStream, &s)
	if o.Name != "ok" || o.Err != nil || o.Status != 200 || !s.head.Stream {
		t.Errorf("%+v", o)
	}
	if want := evRole + evHi + evHi + evHi + evStop + evDone; s.got.String() != want {
		t.Errorf("got %q", s.got.String())
	}
	if o.Usage != (edge.Usage{Known: true, Prompt: 10, Output: 3}) {
		t.Errorf("usage %+v", o.Usage)
	}
	for d, want := range map[*measure.Desc]float64{&measure.PromptTokens: 10, &measure.OutputTokens: 3, &measure.Requests: 1, &measure.Paths: 1} {
		if got := y.counter(*d); got != want {
			t.Errorf("%s = %v, want %v", d.Name, got, want)
		}
	}
	y.balanced()
}

// A stream is the same bytes to the client wherever the engine's reads end.
func TestEverySplit(t *testing.T) {
	whole := evRole + evHi + ": c\n\n" + evStop + evUsage + evDone
	for name, in := range map[string]string{"lf": whole, "crlf": strings.ReplaceAll(whole, "\n", "\r\n"), "cr": strings.ReplaceAll(whole, "\n", "\r")} {
		t.Run(name, func(t *testing.T) {
			y := newYard(t, Config{}, fleet.Worker{ID: "w"})
			want, _, _ := strings.Cut(in, `data: {"choices":[],`)
			_, marker, _ := strings.Cut(in, "data: [DONE]")
			want += "data: [DONE]" + marker
			for cut := range len(in) {
				y.plays(map[fleet.WorkerID]script{"w": streamOf(in[:cut], in[cut:])})
				if cut == 0 {
					y.plays(map[fleet.WorkerID]script{"w": streamOf(in)})
				}
				var s sink
				o := y.serve(t.Context(), shortStream, &s)
				if o.Name != "ok" || o.Usage.Output != 3 || s.got.String() != want {
					t.Fatalf("cut at %d: %s %v, usage %+v\ngot  %q\nwant %q", cut, o.Name, o.Err, o.Usage, s.got.String(), want)
				}
			}
			y.balanced()
		})
	}
}

// A stream costs memory once, not per event.
func TestEventsDoNotAllocate(t *testing.T) {
	run := func(events int) float64 {
		y := newYard(t, Config{}, fleet.Worker{ID: "w"})
		parts := append(slices.Repeat([]string{evHi}, events), evStop, evDone)
		y.plays(map[fleet.WorkerID]script{"w": streamOf(parts...)})
		s := &discard{}
		return testing.AllocsPerRun(20, func() { y.serveTo(t.Context(), shortStream, s) })
	}
	if few, many := run(10), run(1010); many-few > 10 {
		t.Errorf("10 events: %v allocations, 1,010: %v", few, many)
	}
}

type discard struct{}

func (discard) Begin(Head) error   { return nil }
func (discard) Write([]byte) error { return nil }

func TestUsageIsShownToThoseWhoAsked(t *testing.T) {
	y := newYard(t, Config{}, fleet.Worker{ID: "w"})
	var s sink
	y.serve(t.Context(), `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, &s)
	if !strings.HasSuffix(s.got.String(), evStop+evUsage+evDone) {
		t.Errorf("got %q", s.got.String())
	}
	var body string
	y.play = func(_ fleet.WorkerID, c *engine.Call) script { body = string(c.Body); return good() }
	y.d.cfg.KeepUsage = true
	s = sink{}
	y.serve(t.Context(), shortStream, &s)
	if body != shortStream || !strings.Contains(s.got.String(), evUsage) {
		t.Errorf("body %q, got %q", body, s.got.String())
	}
}

func TestWhole(t *testing.T) {
	y := newYard(t, Config{}, fleet.Worker{ID: "w"})
	y.plays(map[fleet.WorkerID]script{"w": {status: 200, plain: true, body: []part{{text: goodAnswer[:20]}, {text: goodAnswer[20:]}}}})
	var s sink
	o := y.serve(t.Context(), shortWhole, &s)
	if o.Name != "ok" || s.head.Stream || s.got.String() != goodAnswer || o.Usage.Output != 3 {
		t.Errorf("%+v %q", o, s.got.String())
	}
	y.balanced()
}

// TestFailures goes through what one worker can do to a request when there is
// no other, and who is at fault.
func TestFailures(t *testing.T) {
	streamThen := func(p ...part) script {
		return script{status: 200, body: append([]part{{text: evRole}, {text: evHi}}, p...)}
	}
	plain := func(p ...part) script { return script{status: 200, plain: true, body: p} }
	tests := []struct {
		name    string
		body    string
		script  script
		outcome string
		status  int    // of the outcome
		code    string // of Err; empty when there is none
		ejected bool
		tail    string // of what the client got
	}{
		{"connect", shortStream, script{err: errDial}, "no_capacity", 503, "no_capacity", true, ""},
		{"stale epoch", shortStream, refusing(421, "stale_epoch"), "no_capacity", 503, "no_capacity", true, ""},
		{"broken before the status", shortStream, script{err: fmt.Errorf("%w: reset", engine.ErrBroken)}, "upstream", 502, "engine_broken", false, ""},
		{"draining", shortStream, refusing(503, "draining"), "no_capacity", 503, "", false, `"no"`},
		{"busy", shortStream, refusing(429, ""), "saturated", 429, "", false, `"no"`},
		{"client's fault", shortStream, refusing(400, ""), "client_error", 400, "", false, `"no"`},
		{"unprocessable", shortWhole, refusing(422, ""), "client_error", 400, "", false, `"no"`},
		{"engine's fault", shortStream, refusing(500, ""), "upstream", 500, "", false, `"no"`},
		{"redirect", shortStream, refusing(302, ""), "upstream", 502, "", false, `"no"`},
		{"broken mid-stream", shortStream, streamThen(part{err: fmt.Errorf("%w: reset", engine.ErrBroken)}), "upstream", 200, "engine_broken", false, evHi},
		{"clean end without marker", shortStream, streamThen(), "upstream", 200, "stream_truncated", false, evHi},
		{"clean end after finish", shortStream, streamThen(part{text: evStop}), "upstream", 200, "stream_truncated", false, evStop},
		{"half an event at the end", shortStream, streamThen(part{text: evHi[:20]}), "upstream", 200, "stream_truncated", false, evHi},
		{"marker without blank line", shortStream, streamThen(part{text: "data: [DONE]"}), "ok", 200, "", false, evHi + "data: [DONE]\n\n"},
		{"only the marker", shortStream, script{status: 200, body: []part{{text: evRole}, {text: evDone}}}, "upstream", 200, "empty_stream", false, evRole},
		{"only usage", shortStream, streamOf(evRole, evUsage, evDone), "upstream", 200, "empty_stream", false, evRole},
		{"no JSON", shortStream, streamOf("data: {zzz\n\n", evDone), "upstream", 200, "empty_stream", false, "data: {zzz\n\n"},
		{"half a chunk", shortStream, streamOf(evRole, evHi[:len(evHi)-4]+"\n\n", evDone), "upstream", 200, "empty_stream", false, ""},
		{"half an end", shortStream, streamOf(evRole, evStop[:len(evStop)-4]+"\n\n", evDone), "upstream", 200, "empty_stream", false, ""},
		{"no JSON, marker without blank line", shortStream, streamOf("data: {zzz\n\n", "data: [DONE]"), "upstream", 200, "stream_truncated", false, ""},
		{"a word and no end", shortStream, streamOf(evHi, evDone), "ok", 200, "", false, evHi + evDone},
		{"empty stream", shortStream, script{status: 200}, "upstream", 200, "stream_truncated", false, ""},
		{"error event", shortStream, streamThen(part{text: evError + evDone}), "upstream", 200, "500", false, evHi},
		{"error as finish", shortStream, streamThen(part{text: `data: {"choices":[{"delta":{},"finish_reason":"error"}]}` + "\n\n" + evDone}), "upstream", 200, "generation_failed", false, `"error"}]}` + "\n\n"},
		{"event too long", shortStream, streamThen(part{text: "data: " + strings.Repeat("x", 10_000)}), "upstream", 200, "event_too_long", false, evHi},
		{"JSON for a stream", shortStream, plain(part{text: goodAnswer}), "upstream", 502, "bad_answer", false, ""},
		{"stream for JSON", shortWhole, good(), "upstream", 502, "bad_answer", false, ""},
		{"half a body", shortWhole, plain(part{text: goodAnswer[:30]}), "upstream", 502, "bad_answer", false, ""},
		{"broken body", shortWhole, plain(part{text: goodAnswer[:30]}, part{err: fmt.Errorf("%w: reset", engine.ErrBroken)}), "upstream", 502, "engine_broken", false, ""},
		{"error under 200", shortWhole, plain(part{text: `{"object":"error","message":"boom","code":500}`}), "upstream", 502, "500", false, ""},
		{"answer too long", shortWhole, plain(part{text: strings.Repeat("x", 10_000)}), "upstream", 502, "answer_too_long", false, ""},
		{"content after the marker", shortStream, streamThen(part{text: evDone + evHi}, part{text: evHi}), "ok", 200, "", false, evHi + evDone},
		{"broken after the marker", shortStream, streamThen(part{text: evDone}, part{err: io.ErrUnexpectedEOF}), "ok", 200, "", false, evDone},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			y := newYard(t, Config{MaxEvent: 8 << 10, MaxAnswer: 8 << 10}, fleet.Worker{ID: "w"})
			y.plays(map[fleet.WorkerID]script{"w": tt.script})
			var s sink
			o := y.serve(t.Context(), tt.body, &s)
			code := ""
			if o.Err != nil {
				code = o.Err.Code
			}
			if o.Name != tt.outcome || o.Status != tt.status || code != tt.code {
				t.Errorf("outcome %s, status %d, code %q (%v)", o.Name, o.Status, code, o.Err)
			}
			if got := s.got.String(); !strings.Contains(got, tt.tail) || o.Begun && s.head.Stream && !strings.HasSuffix(got, tt.tail) {
				t.Errorf("client got %q", got)
			}
			if o.Err != nil && strings.Contains(s.got.String(), "[DONE]") {
				t.Error("a failed stream looks complete")
			}
			if got := y.counter(measure.Ejections) > 0; got != tt.ejected {
				t.Errorf("ejected %v", got)
			}
			y.balanced()
		})
	}
}

func TestUnknownModelAndNoWorkers(t *testing.T) {
	y := newYard(t, Config{})
	if o := y.serve(t.Context(), shortStream, &sink{}); o.Err.Kind != errs.NoCapacity || o.Err.RetryAfter <= 0 {
		t.Errorf("empty fleet: %v", o.Err)
	}
	y.setWorkers(2, fleet.Worker{ID: "w"})
	if o := y.serve(t.Context(), `{"model":"other"}`, &sink{}); o.Err.Kind != errs.NotFound || o.Err.Code != "model_not_found" {
		t.Errorf("unknown model: %v", o.Err)
	}
	if o := y.serve(t.Context(), shortStream, &sink{}); o.Err != nil {
		t.Errorf("known model: %v", o.Err)
	}
	other := fleet.Worker{ID: "x"}
	y.setWorkers(3, other)
	y.view.Workers[0].Models = []string{"z"}
	y.view = fleet.NewView(3, y.view.Workers)
	if o := y.serve(t.Context(), shortStream, &sink{}); o.Err == nil || o.Err.Kind != errs.NoCapacity {
		t.Errorf("a model whose workers left: %v", o.Err)
	}
	for _, f := range y.registry.Snapshot() {
		for _, s := range f.Series {
			if slices.Contains(s.Labels, "other") {
				t.Errorf("a client's invention became a series: %s %v", f.Desc.Name, s.Labels)
			}
		}
	}
	y.balanced()
}

func TestRunnersUp(t *testing.T) {
	tests := []struct {
		name      string
		bad       script
		ejections float64
	}{
		{"connect", script{err: errDial}, 1},
		{"stale epoch", refusing(421, "stale_epoch"), 1},
		{"draining", refusing(503, "draining"), 0},
		{"busy", refusing(429, ""), 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			y := newYard(t, Config{}, fleet.Worker{ID: "bad"}, fleet.Worker{ID: "good"})
			y.plays(map[fleet.WorkerID]script{"bad": tt.bad, "good": good()})
			failedOver := 0
			for range 40 {
				var s sink
				o := y.serve(t.Context(), shortStream, &s)
				if o.Name != "ok" || o.Placement.Serve != "good" {
					t.Fatalf("%+v %v", o, o.Err)
				}
				failedOver += o.Placement.Failovers
			}
			if failedOver == 0 || y.counter(measure.Failovers) != float64(failedOver) {
				t.Errorf("%d failovers, counted %v", failedOver, y.counter(measure.Failovers))
			}
			if got := y.counter(measure.Ejections); got != tt.ejections {
				t.Errorf("%v ejections, want %v", got, tt.ejections)
			}
			if tt.ejections > 0 && failedOver != 1 {
				t.Errorf("an ejected worker was tried %d times", failedOver)
			}
			y.balanced()
		})
	}
}

func TestBusyEverywhereIsPassedOn(t *testing.T) {
	y := newYard(t, Config{}, fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"})
	y.plays(map[fleet.WorkerID]script{"a": refusing(429, ""), "b": refusing(429, "")})
	var s sink
	if o := y.serve(t.Context(), shortStream, &s); o.Name != "saturated" || o.Status != 429 || len(y.called()) != 2 {
		t.Errorf("%+v after %v", o, y.called())
	}
	y.plays(map[fleet.WorkerID]script{"a": refusing(429, ""), "b": {err: errDial}})
	s = sink{}
	if o := y.serve(t.Context(), shortStream, &s); o.Status != 429 || o.Err != nil {
		t.Errorf("one busy, one dead: %+v", o)
	}
	y.balanced()
}

func TestAttemptsAreBounded(t *testing.T) {
	var workers []fleet.Worker
	for i := range 9 {
		workers = append(workers, fleet.Worker{ID: fleet.WorkerID(rune('a' + i))})
	}
	y := newYard(t, Config{Attempts: 3}, workers...)
	y.play = func(fleet.WorkerID, *engine.Call) script { return script{err: errDial} }
	if o := y.serve(t.Context(), shortStream, &sink{}); o.Err.Kind != errs.NoCapacity || len(y.called()) != 3 {
		t.Errorf("%v after %v", o.Err, y.called())
	}
}

func TestEjectionEndsByTimeOrRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, Config{}, fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"})
		dead := map[fleet.WorkerID]script{"a": {err: errDial}, "b": good()}
		y.plays(dead)
		served := func(n int) map[fleet.WorkerID]int {
			got := map[fleet.WorkerID]int{}
			for range n {
				got[y.serve(t.Context(), shortStream, &sink{}).Placement.Serve]++
			}
			return got
		}
		if got := served(20); got["b"] != 20 || y.counter(measure.Ejections) != 1 {
			t.Errorf("%v, %v ejections", got, y.counter(measure.Ejections))
		}
		time.Sleep(210 * time.Millisecond)
		served(20)
		if got := y.counter(measure.Ejections); got != 2 {
			t.Errorf("%v ejections after the first one ran out", got)
		}
		y.plays(map[fleet.WorkerID]script{"a": good(), "b": good()})
		if got := served(20); got["a"] != 0 {
			t.Errorf("served %v while ejected", got)
		}
		y.setWorkers(2, fleet.Worker{ID: "a", Epoch: 2}, fleet.Worker{ID: "b"})
		if got := served(20); got["a"] == 0 {
			t.Errorf("registered again, and still left out: %v", got)
		}
	})
}

// pairOf is a prefill and a decode worker.
func pairOf(t testing.TB) *yard {
	return newYard(t, Config{}, fleet.Worker{ID: "p", Role: fleet.RolePrefill}, fleet.Worker{ID: "d", Role: fleet.RoleDecode})
}

func TestDisaggregated(t *testing.T) {
	y := pairOf(t)
	legs := make(chan *engine.Call, 2)
	y.play = func(w fleet.WorkerID, c *engine.Call) script {
		legs <- c
		s := good()
		s.kv = "moved"
		return s
	}
	var s sink
	o := y.serve(t.Context(), long(), &s)
	if o.Name != "ok" || o.Placement.String() != "disaggregated; reason=long_prompt; policy=sticky; prefill=p; decode=d; kv=moved" {
		t.Errorf("%+v %s", o, o.Placement)
	}
	a, b := <-legs, <-legs
	if a.Leg == engine.Decode {
		a, b = b, a
	}
	if a.Leg != engine.Prefill || b.Leg != engine.Decode || a.TransferID == 0 || a.TransferID != b.TransferID {
		t.Errorf("legs %+v and %+v", a, b)
	}
	if a.Peer.ID != "d" || b.Peer.ID != "p" || string(a.Body) != string(b.Body) || a.RequestID != b.RequestID || a.Stream || !b.Stream {
		t.Errorf("legs %+v and %+v", a, b)
	}
	y.balanced()
}

func TestPrefillLegFailureDoesNotFailTheRequest(t *testing.T) {
	for name, tt := range map[string]struct {
		script script
		fault  string
		eject  float64
	}{
		"connect":      {script{err: errDial}, "connect", 1},
		"broken":       {script{err: fmt.Errorf("%w: reset", engine.ErrBroken)}, "broken", 0},
		"broken later": {script{status: 200, body: []part{{err: fmt.Errorf("%w: reset", engine.ErrBroken)}}}, "broken", 0},
		"refused":      {refusing(503, "draining"), "refused", 0},
		"stale":        {refusing(421, "stale_epoch"), "stale_epoch", 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y := pairOf(t)
				y.plays(map[fleet.WorkerID]script{"p": tt.script, "d": good()})
				var s sink
				s.write = func([]byte) { synctest.Wait() } // the prefill leg gets to its end first
				o := y.serve(t.Context(), long(), &s)
				if o.Name != "ok" || o.Placement.PrefillFault != tt.fault || y.counter(measure.Ejections) != tt.eject {
					t.Errorf("%s, fault %q, %v ejections", o.Name, o.Placement.PrefillFault, y.counter(measure.Ejections))
				}
				y.balanced()
			})
		})
	}
}

// The decode worker cannot be reached: the prefill leg is cancelled and the
// runner-up gets a transfer of its own.
func TestDecodeFailoverPairsAnew(t *testing.T) {
	y := newYard(t, Config{},
		fleet.Worker{ID: "p", Role: fleet.RolePrefill},
		fleet.Worker{ID: "d1", Role: fleet.RoleDecode}, fleet.Worker{ID: "d2", Role: fleet.RoleDecode})
	var first fleet.WorkerID
	transfers := map[fleet.WorkerID]uint64{}
	y.play = func(w fleet.WorkerID, c *engine.Call) script {
		if w == "p" {
			return script{hang: c.Peer.ID == first || first == "", status: 200, plain: true}
		}
		transfers[w] = c.TransferID
		if first == "" {
			first = w
		}
		if w == first {
			return script{err: errDial}
		}
		return good()
	}
	o := y.serve(t.Context(), long(), &sink{})
	if o.Name != "ok" || o.Placement.Failovers != 1 || o.Placement.Path != "disaggregated" {
		t.Errorf("%+v %v", o, o.Err)
	}
	if transfers["d1"] == transfers["d2"] || len(transfers) != 2 {
		t.Errorf("transfers %v", transfers)
	}
	y.balanced()
}

// A transfer is of one prompt: requests with several are computed on one worker.
func TestManyPromptsStayTogether(t *testing.T) {
	text := strings.Repeat("x", 4000)
	ids := "[1" + strings.Repeat(",12", 2000) + "]"
	for prompt, want := range map[string]string{
		`["` + text + `","b"]`: "aggregated; reason=many_prompts", `[` + ids + `,[2]]`: "aggregated; reason=many_prompts",
		`["` + text + `"]`: "disaggregated", `[` + ids + `]`: "disaggregated", ids: "disaggregated",
	} {
		y := pairOf(t)
		if o := y.serve(t.Context(), `{"model":"m","stream":true,"prompt":`+prompt+`}`, &sink{}); o.Name != "ok" || !strings.HasPrefix(o.Placement.String(), want) {
			t.Errorf("%.9q: %s %v, %s", prompt, o.Name, o.Err, o.Placement)
		}
		y.balanced()
	}
}

// A worker that does not take a request as a leg gets it, or another one does,
// without legs. The refusal is nothing to the client.
func TestLegRefused(t *testing.T) {
	for _, reason := range []string{engine.ReasonBadLeg, engine.ReasonLegsUnsupported} {
		for _, both := range []bool{false, true} {
			for _, body := range []string{long(), strings.Replace(long(), `"stream":true`, `"stream":false`, 1)} {
				y := pairOf(t)
				y.play = func(w fleet.WorkerID, c *engine.Call) script {
					switch {
					case c.Leg == engine.Decode, c.Leg == engine.Prefill && both:
						return refusing(400, reason)
					case c.Leg == engine.Prefill, c.Stream:
						return good()
					}
					return script{status: 200, plain: true, body: []part{{text: goodAnswer}}}
				}
				o := y.serve(t.Context(), body, &sink{})
				if o.Name != "ok" || o.Placement.Path != "aggregated" || o.Placement.Reason != "leg_refused" && !both {
					t.Errorf("%s: %s %v, %s", reason, o.Name, o.Err, o.Placement)
				}
				y.balanced()
			}
		}
	}
	// Without legs the same word is a fault of the request's.
	y := newYard(t, Config{}, fleet.Worker{ID: "a"})
	y.plays(map[fleet.WorkerID]script{"a": refusing(400, engine.ReasonBadLeg)})
	if o := y.serve(t.Context(), long(), &sink{}); o.Status != 400 || len(y.called()) != 1 {
		t.Errorf("%d after %v", o.Status, y.called())
	}
}

func TestPrefillLegEndsWithTheDecodeLeg(t *testing.T) {
	y := pairOf(t)
	y.plays(map[fleet.WorkerID]script{"p": {hang: true}, "d": good()})
	if o := y.serve(t.Context(), long(), &sink{}); o.Name != "ok" || o.Placement.PrefillFault != "" {
		t.Errorf("%+v", o)
	}
	y.balanced()
}

func TestClientLeaves(t *testing.T) {
	for name, s := range map[string]script{
		"before the status": {hang: true},
		"before a token":    {status: 200, body: []part{{hang: true}}},
		"mid-stream":        {status: 200, body: []part{{text: evRole}, {text: evHi}, {hang: true}}},
		"in the tail":       {status: 200, body: []part{{text: evHi}, {text: evDone}, {hang: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y := pairOf(t)
				y.plays(map[fleet.WorkerID]script{"p": {hang: true}, "d": s})
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(100*time.Millisecond, cancel)
				began := time.Now()
				o := y.serve(ctx, long(), &sink{})
				if want := "canceled"; o.Name != want && name != "in the tail" || time.Since(began) > 200*time.Millisecond {
					t.Errorf("%s after %v", o.Name, time.Since(began))
				}
				y.balanced()
			})
		})
	}
}

func TestShutdownTellsWhy(t *testing.T) {
	y := newYard(t, Config{}, fleet.Worker{ID: "w"})
	y.plays(map[fleet.WorkerID]script{"w": {status: 200, body: []part{{text: evHi}, {hang: true}}}})
	ctx, cancel := context.WithCancelCause(t.Context())
	s := sink{write: func([]byte) { cancel(&errs.Error{Kind: errs.NoCapacity, Client: "shutting down"}) }}
	if o := y.serve(ctx, shortStream, &s); o.Err == nil || o.Err.Client != "shutting down" || !o.Begun {
		t.Errorf("%+v", o)
	}
}

func TestFailingSinkCancelsTheEngine(t *testing.T) {
	y := pairOf(t)
	y.plays(map[fleet.WorkerID]script{"p": {hang: true}, "d": {status: 200, body: []part{{text: evHi}, {hang: true}}}})
	s := sink{fail: errors.New("client reset")}
	if o := y.serve(t.Context(), long(), &s); o.Name != "canceled" || o.Err.Kind != errs.Canceled {
		t.Errorf("%+v", o)
	}
	y.balanced()
}

func TestDeadlines(t *testing.T) {
	d := Deadlines{Header: 3 * time.Second, FirstToken: 5 * time.Second, Idle: 2 * time.Second, Total: 20 * time.Second, Tail: time.Second}
	hang := part{hang: true}
	endless := func() []part {
		var parts []part
		for range 10_000 {
			parts = append(parts, part{text: evHi})
		}
		return parts
	}
	tests := []struct {
		name   string
		body   string
		script script
		pace   time.Duration // a client's time per write
		code   string        // empty is success
		after  time.Duration
	}{
		{"header", shortStream, script{hang: true}, 0, "header_timeout", 3 * time.Second},
		{"whole answers wait for the total", shortWhole, script{hang: true}, 0, "total_timeout", 20 * time.Second},
		{"first token", shortStream, script{status: 200, body: []part{{text: ": wait\n\n"}, hang}}, 0, "first_token_timeout", 5 * time.Second},
		{"idle", shortStream, script{status: 200, body: []part{{text: evHi}, hang}}, 0, "idle_timeout", 2 * time.Second},
		{"comments are no tokens", shortStream, script{status: 200, body: []part{{text: evHi}, {text: ": busy\n\n"}, hang}}, 0, "idle_timeout", 2 * time.Second},
		{"half an event is no token", shortStream, script{status: 200, body: []part{{text: evHi}, {text: evHi[:9]}, hang}}, 0, "idle_timeout", 2 * time.Second},
		{"total", shortStream, script{status: 200, body: endless()}, time.Second, "total_timeout", 20 * time.Second},
		{"a slow client is not the engine's silence", shortStream, good(), 3 * time.Second, "", 18 * time.Second},
		{"tail", shortStream, script{status: 200, body: []part{{text: evHi}, {text: evDone}, hang}}, 0, "", time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y := newYard(t, Config{Deadlines: d}, fleet.Worker{ID: "w"})
				y.plays(map[fleet.WorkerID]script{"w": tt.script})
				began := time.Now()
				s := sink{write: func([]byte) { time.Sleep(tt.pace) }}
				o := y.serve(t.Context(), tt.body, &s)
				code := ""
				if o.Err != nil {
					code = o.Err.Code
				}
				if took := time.Since(began); code != tt.code || took < tt.after || took > tt.after+tt.pace+time.Millisecond {
					t.Errorf("%q after %v (%v)", code, took, o.Err)
				}
				y.balanced()
			})
		})
	}
}

func TestGateRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, Config{Admit: admit.Config{MaxInFlight: 1}}, fleet.Worker{ID: "w"})
		y.plays(map[fleet.WorkerID]script{"w": {hang: true}})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { y.serve(ctx, shortStream, &sink{}) })
		synctest.Wait()
		if _, err := y.d.Accept("test"); errs.KindOf(err) != errs.Saturated {
			t.Errorf("second request: %v", err)
		}
		cancel()
		wg.Wait()
		y.balanced()
	})
}

func TestLifeWithoutAnOutcomeIsCounted(t *testing.T) {
	y := newYard(t, Config{}, fleet.Worker{ID: "w"})
	life, err := y.d.Accept("test")
	if err != nil {
		t.Fatal(err)
	}
	life.Close()
	life.Close()
	life, _ = y.d.Accept("test")
	if o := life.Refuse(&errs.Error{Kind: errs.BadRequest, Client: "no"}); o.Name != "client_error" || o.Status != 400 {
		t.Errorf("%+v", o)
	}
	life.Close()
	if y.counter(measure.Requests) != 2 {
		t.Errorf("%v counted", y.counter(measure.Requests))
	}
	y.balanced()
}

// complete reports whether a client takes a stream for whole.
func complete(stream string) bool {
	r := eventstream.NewReader(make([]byte, 64), 1<<20)
	src := strings.NewReader(stream)
	done := false
	for {
		err := r.Fill(src)
		for e, ok := r.Next(); ok; e, ok = r.Next() {
			done = string(e.Data) == "[DONE]"
		}
		if err != nil {
			return done
		}
	}
}

// Whatever workers and clients do, every request has one outcome, what the
// client got agrees with it, and nothing stays reserved, open or running.
func TestAnyFaultBalances(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		parts := rapid.SliceOfN(rapid.SampledFrom([]part{
			{text: evRole},
			{text: evHi},
			{text: evHi + evHi},
			{text: evHi[:30]},
			{text: evHi[30:]},
			{text: ": c\n\n"},
			{text: evStop},
			{text: evUsage},
			{text: evDone},
			{text: evError},
			{hang: true},
			{err: fmt.Errorf("%w: x", engine.ErrBroken)},
			{text: "\n"},
		}), 0, 8)
		scripts := rapid.Custom(func(rt *rapid.T) script {
			return rapid.SampledFrom([]script{
				good(),
				{err: errDial},
				{err: fmt.Errorf("%w: x", engine.ErrBroken)},
				{hang: true},
				refusing(421, "stale_epoch"), refusing(503, "draining"), refusing(429, ""), refusing(400, ""), refusing(500, ""),
				{status: 200, body: parts.Draw(rt, "parts")},
				{status: 200, plain: true, body: parts.Draw(rt, "parts")},
				{status: 200, plain: true, body: []part{{text: goodAnswer}}},
			}).Draw(rt, "script")
		})
		plan := rapid.SliceOfN(scripts, 1, 12).Draw(rt, "plan")
		leaves := rapid.SliceOfN(rapid.IntRange(-1, 3), 6, 6).Draw(rt, "client leaves at write")
		bodies := rapid.SliceOfN(rapid.SampledFrom([]string{shortStream, shortWhole, long()}), 6, 6).Draw(rt, "bodies")

		y := newYard(t, Config{Deadlines: Deadlines{Header: 20 * time.Millisecond, FirstToken: 20 * time.Millisecond, Idle: 20 * time.Millisecond, Total: 50 * time.Millisecond, Tail: 5 * time.Millisecond}},
			fleet.Worker{ID: "p", Role: fleet.RolePrefill}, fleet.Worker{ID: "d", Role: fleet.RoleDecode}, fleet.Worker{ID: "b"})
		y.repeats = rapid.Bool().Draw(rt, "repeats")
		turn := 0
		y.play = func(fleet.WorkerID, *engine.Call) script {
			turn++
			return plan[turn%len(plan)]
		}
		var wg sync.WaitGroup
		for i, body := range bodies {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				writes := 0
				s := sink{write: func([]byte) {
					if writes++; writes == leaves[i] {
						cancel()
					}
				}}
				if leaves[i] == 0 {
					cancel()
				}
				o := y.serve(ctx, body, &s)
				got := s.got.String()
				switch {
				case o.Name == "":
					t.Error("no outcome")
				case s.head != nil && s.head.Stream && (o.Err == nil) != complete(got):
					t.Errorf("outcome %s (%v), client got %q", o.Name, o.Err, got)
				case o.Err == nil && s.head == nil:
					t.Errorf("outcome %s without an answer", o.Name)
				}
			})
		}
		wg.Wait()
		y.balanced()
		if got := y.counter(measure.Requests); got != float64(len(bodies)) {
			rt.Fatalf("%v outcomes of %d requests", got, len(bodies))
		}
	})
}
