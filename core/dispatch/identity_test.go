package dispatch

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/wire/edge"
)

// ask sends a completion of about n tokens whose text begins with the topic.
func (y *yard) ask(id, topic string, n int) Outcome {
	y.t.Helper()
	text := topic + " " + strings.Repeat(topic+" again; ", n*4/(len(topic)+8))
	req, err := edge.Parse(fmt.Appendf(nil, `{"model":"m","prompt":%q}`, text), 0)
	if err != nil {
		y.t.Fatal(err)
	}
	life, err := y.d.Accept("test")
	if err != nil {
		y.t.Fatal(err)
	}
	defer life.Close()
	return life.Serve(y.t.Context(), &Request{Request: req, ID: id, Path: "/v1/completions"}, &sink{})
}

// cachedAnswer is a whole answer that reports cached tokens, of 1,000.
func cachedAnswer(cached int) script {
	return script{status: 200, plain: true, body: []part{{text: fmt.Sprintf(
		`{"choices":[{"text":"x"}],"usage":{"prompt_tokens":1000,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":%d}}}`, cached,
	)}}}
}

// Prompts go where their beginning was computed, new ones spread, and all of it
// can be asked for afterwards.
func TestPromptsReturnToTheirBlocks(t *testing.T) {
	y := newYard(t, alone(), fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"}, fleet.Worker{ID: "c"})
	y.play = func(fleet.WorkerID, *engine.Call) script { return cachedAnswer(960) }
	homes := map[string]fleet.WorkerID{}
	for _, topic := range []string{"geese", "rivers", "clocks"} {
		homes[topic] = y.ask("first-"+topic, topic, 1000).Placement.Serve
	}
	if len(map[fleet.WorkerID]bool{homes["geese"]: true, homes["rivers"]: true, homes["clocks"]: true}) != 3 {
		t.Errorf("three topics on %v", homes)
	}
	for i := range 12 {
		for topic, home := range homes {
			o := y.ask(fmt.Sprintf("%s-%d", topic, i), topic, 1000+50*i)
			if p := o.Placement; p.Serve != home || p.Hit < 800 || p.Prompt < p.Hit {
				t.Fatalf("%s went to %s with %d of %d, its home is %s", topic, p.Serve, p.Hit, p.Prompt, home)
			}
		}
	}
	y.balanced()

	if y.d.Explain("nobody") != nil {
		t.Error("explained a request that never was")
	}
	all := y.d.Explain("geese-3")
	if len(all) != 1 {
		t.Fatalf("%d explanations", len(all))
	}
	e := all[0]
	if e.Model != "m" || e.Outcome != "ok" || e.Placement.Serve != homes["geese"] || e.Candidates != 3 || len(e.Serving) != 3 ||
		e.Serving[0].Worker != homes["geese"] || e.Serving[0].Hit < 800 || !e.CachedKnown || e.Cached != 960 {
		t.Errorf("%+v", e)
	}
}

// A worker that holds the prompt and does not answer is left for another, and
// the explanation shows both attempts.
func TestFailoverLeavesTheHolder(t *testing.T) {
	y := newYard(t, alone(), fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"})
	home := y.ask("1", "geese", 1000).Placement.Serve
	y.play = func(w fleet.WorkerID, _ *engine.Call) script {
		if w == home {
			return script{err: engine.ErrConnect}
		}
		return cachedAnswer(0)
	}
	o := y.ask("2", "geese", 1000)
	if o.Name != "ok" || o.Placement.Serve == home || o.Placement.Failovers != 1 {
		t.Fatalf("%+v %v", o, o.Placement)
	}
	all := y.d.Explain("2")
	if len(all) != 2 || all[0].Placement.Serve != home || all[0].Outcome != "" || all[1].Outcome != "ok" ||
		all[1].Vetoes != 1 || all[1].Vetoed[0].Worker != home {
		t.Errorf("%+v", all)
	}
	if o = y.ask("3", "geese", 1000); o.Placement.Serve == home || o.Placement.Hit == 0 {
		t.Errorf("%v", o.Placement)
	}
	y.balanced()
}

// An engine that never has what is predicted becomes degraded; one that does not
// say is believed.
func TestPredictionsAreHeldAgainstReports(t *testing.T) {
	for _, tt := range []struct {
		name     string
		answer   script
		degraded float64
	}{
		{"caches nothing", cachedAnswer(0), 1},
		{"has it", cachedAnswer(960), 0},
		{"does not say", script{status: 200, plain: true, body: []part{{text: goodAnswer}}}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			y := newYard(t, alone(), fleet.Worker{ID: "a"})
			y.play = func(fleet.WorkerID, *engine.Call) script { return tt.answer }
			for i := range 40 {
				y.ask(strconv.Itoa(i), "geese", 1000)
			}
			if got := y.counter(measure.PrefixDegraded); got != tt.degraded {
				t.Errorf("degraded %v, want %v", got, tt.degraded)
			}
		})
	}
}

// What a worker's KV events tell is not guessed beside it.
func TestToldWorkersAreNotGuessed(t *testing.T) {
	y := newYard(t, alone(), fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"})
	state := prefix.NewState(prefix.Options{})
	state.Apply(&prefix.Frame{Kind: prefix.FrameAttach, Worker: "a", Epoch: 1})
	state.Apply(&prefix.Frame{Kind: prefix.FrameAttach, Worker: "b", Epoch: 1})
	y.d.deps.Events = state.Table
	y.play = func(fleet.WorkerID, *engine.Call) script { return cachedAnswer(0) }
	first := y.ask("1", "geese", 1000).Placement.Serve
	// No event has come yet; the decision alone says where it is.
	for i := range 20 {
		if p := y.ask(strconv.Itoa(i), "geese", 1000).Placement; p.Serve != first || p.Hit == 0 {
			t.Fatalf("%v", p)
		}
	}
	if n := y.counter(measure.PrefixPredicted); n != 0 {
		t.Errorf("%v tokens were guessed", n)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	y := newYard(t, alone(), fleet.Worker{ID: "a"})
	for i := range keptExplanations + 10 {
		y.ask(strconv.Itoa(i), "x", 10)
	}
	if y.d.Explain("0") != nil || y.d.Explain("9") != nil || len(y.d.Explain("10")) != 1 {
		t.Error("not the last ones are kept")
	}
	if n := len(y.d.memory.ring); n != keptExplanations {
		t.Errorf("%d kept", n)
	}
}

// A prompt that waited for its model's first worker is known as that worker knows
// it: the next one with its beginning is a hit.
func TestIdentityWaitsForTheFirstWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := alone()
		cfg.Models, cfg.Deadlines.Hold = []string{"m"}, 5*time.Second
		y := newYard(t, cfg)
		y.play = func(fleet.WorkerID, *engine.Call) script { return cachedAnswer(0) }
		time.AfterFunc(time.Second, func() { y.setWorkers(2, fleet.Worker{ID: "a"}) })
		if o := y.ask("1", "geese", 1000); o.Name != "ok" {
			t.Fatalf("%s: %v", o.Name, o.Err)
		}
		if p := y.ask("2", "geese", 1000).Placement; p.Hit == 0 {
			t.Errorf("no hit: %v", p)
		}
		y.balanced()
	})
}

// While there is no worker, a model that is not among the declared ones is unknown
// at once.
func TestUndeclaredModelIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := alone()
		cfg.Models, cfg.Deadlines.Hold = []string{"first", "second"}, 5*time.Second
		y := newYard(t, cfg)
		y.play = func(fleet.WorkerID, *engine.Call) script { return cachedAnswer(0) }
		start := time.Now()
		o := y.ask("1", "geese", 1000)
		if o.Err == nil || o.Err.Kind != errs.NotFound || !strings.Contains(o.Err.Client, `"first", "second"`) {
			t.Errorf("%s: %v", o.Name, o.Err)
		}
		if waited := time.Since(start); waited > 0 {
			t.Errorf("after %v", waited)
		}
		y.setWorkers(2, fleet.Worker{ID: "a"}) // which serves it
		if o := y.ask("2", "geese", 1000); o.Name != "ok" {
			t.Errorf("%s: %v", o.Name, o.Err)
		}
		y.balanced()
	})
}

func TestTargetIsTheMajoritys(t *testing.T) {
	worker := func(id fleet.WorkerID, compat string, models ...string) fleet.Worker {
		return fleet.Worker{ID: id, Epoch: 1, Compat: compat, Models: models, Capacity: fleet.Capacity{BlockTokens: 32}}
	}
	view := fleet.NewView(1, []fleet.Worker{
		worker("a", "x", "base", "tuned"), worker("b", "y", "base"), worker("c", "y", "base", "tuned"),
	})
	if got := targetOf(view, "base"); got.Scope != (prefix.Scope{Base: "base", Compat: "y"}) || got.BlockTokens != 32 {
		t.Errorf("%+v", got)
	}
	if got := targetOf(view, "tuned"); got.Scope.Base != "base" || got.Scope.Adapter != "tuned" {
		t.Errorf("%+v", got)
	}
	if targetOf(view, "none") != nil {
		t.Error("a model that nobody serves has a target")
	}
}

// alone computes every prompt where it is answered.
func alone() Config { return Config{Route: route.Config{Mode: route.Never}} }

// Where the length decided, the placement says what it was compared with.
func TestPlacementTellsTheThreshold(t *testing.T) {
	y := newYard(t, Config{Route: route.Config{MinPrompt: 1 << 20}}, fleet.Worker{ID: "p", Role: fleet.RolePrefill}, fleet.Worker{ID: "d", Role: fleet.RoleDecode})
	o := y.serve(t.Context(), shortStream, &sink{})
	if got := o.Placement.String(); !strings.Contains(got, "reason=short_prompt; prompt=") || !strings.Contains(got, "; min-prompt=1048576;") {
		t.Errorf("%s", got)
	}
}
