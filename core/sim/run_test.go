package sim

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/core/cost"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/sim/trace"
	"github.com/yardmaster/yardmaster/core/unit"
)

// slow takes 1 ms a prompt token and 10 ms a step of decoding.
var slow = cost.EngineTime{PrefillToken: 1, DecodeBase: 10}

func run(t *testing.T, c Config, requests []trace.Request) *Report {
	t.Helper()
	r, err := Run(t.Context(), c, requests)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Two requests of one prompt, far apart, computed by hand.
func TestOneWorker(t *testing.T) {
	requests := []trace.Request{
		{Input: 1024, Output: 3, Blocks: []uint64{1, 2}},
		{At: 10 * time.Second, Input: 1100, Output: 1, Blocks: []uint64{1, 2, 3}},
	}
	r := run(t, Config{Pools: []Pool{{Role: fleet.RoleBoth, Workers: 1, Engine: slow, StepTokens: 4096}}}, requests)
	// The first computes 1,024 tokens and two steps follow; the second finds 1,024.
	want := Report{
		Requests: 2, Virtual: 10*time.Second + 76*time.Millisecond, HitRatio: 1024. / 2124, Skew: 1, SkewRequests: 1,
		First:       Times{(1024 + 76) * time.Millisecond / 2, 1024 * time.Millisecond, 1024 * time.Millisecond},
		Between:     Times{Mean: 10 * time.Millisecond, P50: r.Between.P50, P99: r.Between.P99},
		Utilisation: map[string]float64{"both": (1.024 + .02 + .076) / 10.076}, Worker: []int32{0, 0},
	}
	got := *r
	got.ShadowDiffers = 0
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if r.Between.P50 < 9800*time.Microsecond || r.Between.P50 > 10200*time.Microsecond {
		t.Errorf("between tokens %v", r.Between.P50)
	}
}

// A prompt joins a batch that generates: its part of the step delays the tokens.
func TestPromptsDelayTokens(t *testing.T) {
	requests := []trace.Request{
		{Input: 10, Output: 100, Blocks: []uint64{1}},
		{At: 105 * time.Millisecond, Input: 50, Output: 1, Blocks: []uint64{2}},
	}
	r := run(t, Config{Pools: []Pool{{Role: fleet.RoleBoth, Workers: 1, Engine: slow}}}, requests)
	// The first's tokens come at 10, 20, … ms; the second waits for the step that is
	// underway at 105 ms, and its 50 ms are one step.
	if got := r.First.P99; got != 55*time.Millisecond {
		t.Errorf("the second's first token after %v, want 5 + 50 ms", got)
	}
	if got := r.Between.P99; got < 48*time.Millisecond || got > 52*time.Millisecond {
		t.Errorf("the longest gap is %v, want 50 ms", got)
	}
}

func TestDisaggregated(t *testing.T) {
	requests := trace.Generate(1, 200)
	c := Config{
		Pools: []Pool{
			{Role: fleet.RolePrefill, Workers: 2, Engine: cost.EngineTime{PrefillToken: .02, DecodeBase: 6}},
			{Role: fleet.RoleDecode, Workers: 2, Engine: cost.EngineTime{PrefillToken: .02, DecodeBase: 6}},
		},
		Route: route.Config{Mode: route.Always},
	}
	r := run(t, c, requests)
	if r.Disaggregated != 1 || r.Utilisation["prefill"] == 0 || r.Utilisation["decode"] == 0 {
		t.Errorf("%+v", r)
	}
	for _, w := range r.Worker {
		if w < 2 {
			t.Fatalf("served by worker %d, which only computes prompts", w)
		}
	}
}

// The same seed plays the same; nothing is left in flight; each token is counted.
func TestDeterministicAndBalanced(t *testing.T) {
	requests := trace.Generate(7, 400)
	c := Config{Pools: []Pool{{Role: fleet.RoleBoth, Workers: 4, Engine: preset(t)}}, Seed: 3, Speed: 4}
	a := run(t, c, requests)
	if b := run(t, c, requests); !cmp.Equal(a, b, cmp.Comparer(func(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) })) {
		t.Errorf("two runs differ:\n%+v\n%+v", a, b)
	}
	p := newPlay(c.withDefaults(), requests)
	for p.ended < len(requests) && p.next() {
	}
	p.finish()
	var tokens uint64
	for _, r := range requests {
		tokens += uint64(max(r.Output, 1)) - 1
	}
	if p.between.n != tokens {
		t.Errorf("%d gaps between tokens, want %d", p.between.n, tokens)
	}
	for i, slot := range p.table.Columns(p.view).Slots {
		if slot.InFlight() != 0 || p.engines[i].held != 0 || !p.engines[i].idle() {
			t.Errorf("worker %d has %d requests and %d tokens left", i, slot.InFlight(), p.engines[i].held)
		}
	}
	if stats := p.state.Stats(); stats.Degraded != 0 {
		t.Errorf("%d of the workers' caches are not told exactly", stats.Degraded)
	}
}

func preset(t *testing.T) cost.EngineTime {
	t.Helper()
	e, ok := cost.Engine("llama-3.1-8b-bf16-h100x1")
	if !ok {
		t.Fatal("no such engine")
	}
	return e
}

func TestPoliciesDiffer(t *testing.T) {
	requests := trace.Generate(5, 1500)
	pool := []Pool{{Role: fleet.RoleBoth, Workers: 4, Engine: preset(t), KVTokens: 2_000_000}}
	sticky := run(t, Config{Pools: pool, Shadow: route.RoundRobin{}}, requests)
	robin := run(t, Config{Pools: pool, Route: route.Config{Policy: route.RoundRobin{}}, Shadow: route.RoundRobin{}}, requests)
	if sticky.HitRatio < 1.2*robin.HitRatio {
		t.Errorf("sticky finds %.3f, round robin %.3f", sticky.HitRatio, robin.HitRatio)
	}
	if sticky.ShadowDiffers < .3 || robin.ShadowDiffers != 0 {
		t.Errorf("the shadow differs in %.2f, from itself in %.2f", sticky.ShadowDiffers, robin.ShadowDiffers)
	}
	if d := Differing(sticky, robin); d < .3 || d > 1 {
		t.Errorf("%.2f of the requests differ", d)
	}
}

// A trace that is more than the fleet can take is served in the end.
// pinned sends each conversation to a worker of its own, and counts who has none.
type pinned struct{ strangers, unsaid int }

func (*pinned) Name() string { return "pinned" }

func (p *pinned) Score(q *route.Query, _ *route.Columns, cost []float64) {
	if q.Session == 0 {
		p.strangers++
	}
	if q.Class != 2 || q.Seed == 0 {
		p.unsaid++
	}
	for i := range cost {
		cost[i] = float64((uint64(i) + q.Session>>8) % uint64(len(cost)))
	}
}

// Policies are told the conversation: who keeps each at one worker finds in its cache
// what the turn before has left, which who takes turns does not.
func TestSessions(t *testing.T) {
	requests := trace.Generate(1, 3000)
	c := Config{Pools: []Pool{{Role: fleet.RoleBoth, Workers: 8, Engine: cost.EngineTime{PrefillToken: .02, DecodeBase: 6}}}}
	var keeps pinned
	c.Route.Policy = &keeps
	kept := run(t, c, requests)
	c.Route.Policy = route.RoundRobin{}
	spread := run(t, c, requests)
	t.Logf("pinned %.3f, round-robin %.3f", kept.HitRatio, spread.HitRatio)
	if keeps.strangers > 0 || keeps.unsaid > 0 || kept.HitRatio < 1.5*spread.HitRatio {
		t.Errorf("pinned finds %.3f, round-robin %.3f; %d requests had no conversation, %d no class", kept.HitRatio, spread.HitRatio, keeps.strangers, keeps.unsaid)
	}
}

func TestOverload(t *testing.T) {
	requests := trace.Generate(2, 300)
	c := Config{Pools: []Pool{{Role: fleet.RoleBoth, Workers: 1, Engine: slow, MaxRunning: 4, KVTokens: 20_000}}, Speed: 1000}
	if r := run(t, c, requests); r.Requests != 300 || r.Utilisation["both"] < .9 {
		t.Errorf("%+v", r)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := Config{Pools: []Pool{{Role: fleet.RoleBoth, Workers: 1, Engine: slow}}}
	if _, err := Run(ctx, c, trace.Generate(1, 10)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []Config{
		{},
		{Pools: []Pool{{Role: fleet.RolePrefill, Workers: 1}}},
		{Pools: []Pool{{Role: fleet.RoleBoth}}},
		{Pools: []Pool{{Role: fleet.RoleBoth, Workers: MaxWorkers + 1}}},
		{Pools: []Pool{{Role: fleet.RoleBoth, Workers: 1, KVTokens: unit.Tokens(-1)}}},
		{Pools: []Pool{{Role: fleet.RoleBoth, Workers: 1}}, Speed: math.NaN()},
	} {
		if c.Validate() == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}

func BenchmarkRun(b *testing.B) {
	e, _ := cost.Engine("llama-3.1-8b-bf16-h100x1")
	requests := trace.Generate(1, 12_031)
	c := Config{Pools: []Pool{{Role: fleet.RoleBoth, Workers: 8, Engine: e}}}
	for b.Loop() {
		if _, err := Run(b.Context(), c, requests); err != nil {
			b.Fatal(err)
		}
	}
}
