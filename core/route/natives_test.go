package route

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/cost"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/unit"
)

// formula is a policy with columns and the costs that a hand has computed.
type formula struct {
	name   string
	policy Policy
	query  Query
	fill   func(*Columns)
	want   []float64
}

func check(t *testing.T, tests []formula) {
	t.Helper()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := columns(3)
			tt.fill(c)
			got := make([]float64, 3)
			tt.policy.Score(&tt.query, c, got)
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateApprox(1e-9, 1e-9), cmpopts.EquateNaNs()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestMooncake(t *testing.T) {
	nan := math.NaN()
	link := cost.Link{Setup: 100 * time.Millisecond, BytesPerSecond: 1e6, Efficiency: .5}
	three := func(c *Columns) {
		c.Queued, c.Hit, c.Rate = []float64{4000, 0, 0}, []float64{900, 0, 600}, []float64{1000, 1000, 500}
		c.TokenBytes, c.Group = []float64{100, 100, 100}, []uint32{1, 1, 1}
	}
	check(t, []formula{
		{
			// The holder queues: (4000 + 100)/1000. Moved to the second: .1 s and 900·100
			// bytes at 500 kB/s, then 100/1000. To the third 900 is not twice 600, so
			// that it computes 400/500.
			"moved or computed",
			Mooncake{Link: link},
			Query{Prompt: 1000},
			three,
			[]float64{4.1, .1 + .18 + .1, .8},
		},
		{
			// .1 + 300·100/500,000 + 100/500
			"a lower threshold",
			Mooncake{Link: link, Threshold: 1.2},
			Query{Prompt: 1000},
			three,
			[]float64{4.1, .38, .1 + .06 + .2},
		},
		{
			// A millisecond, 900·100 bytes at 1 GB/s, 100/1000.
			"the usual link",
			Mooncake{},
			Query{Prompt: 1000},
			three,
			[]float64{4.1, .001 + .00009 + .1, .8},
		},
		{
			"a move that takes longer than computing",
			Mooncake{Link: cost.Link{BytesPerSecond: 1e4, Efficiency: 1}},
			Query{Prompt: 1000},
			three,
			[]float64{4.1, 1, .8},
		},
		{
			"beyond the objective is ineligible",
			Mooncake{Link: link, SLO: 500 * time.Millisecond},
			Query{Prompt: 1000},
			three,
			[]float64{nan, .38, nan},
		},
		{
			"other groups, and none, give nothing",
			Mooncake{},
			Query{Prompt: 1000},
			func(c *Columns) { three(c); c.Group = []uint32{1, 2, 0} },
			[]float64{4.1, 1, .8},
		},
		{
			"unknown size of KV",
			Mooncake{},
			Query{Prompt: 1000},
			func(c *Columns) { three(c); c.TokenBytes[1] = nan },
			[]float64{4.1, 1, .8},
		},
		{
			"nobody moves",
			Mooncake{},
			Query{Prompt: 1000},
			func(c *Columns) { three(c); c.Group, c.TokenBytes = nil, nil },
			[]float64{4.1, 1, .8},
		},
		{
			"unmeasured rates are the mean",
			Mooncake{},
			Query{Prompt: 1000},
			func(c *Columns) { c.Rate = []float64{nan, 1000, 3000} },
			[]float64{.5, 1, 1 / 3.},
		},
		{
			"no rate measured",
			Mooncake{},
			Query{Prompt: 15_928},
			func(c *Columns) { c.Queued[2] = 15_928 },
			[]float64{1, 1, 2},
		},
	})
}

func TestPreble(t *testing.T) {
	nan := math.NaN()
	check(t, []formula{
		{
			// No hit is more than half: (M + n − h)/rate + r·128·step. The step of the
			// third is the mean, 15 ms.
			"explores",
			Preble{},
			Query{Prompt: 1000},
			func(c *Columns) {
				c.Rate, c.Step = []float64{1000, 2000, 1000}, []float64{.01, .02, nan}
				c.Missed, c.Hit, c.Requests = []float64{500, 3000, 0}, []float64{500, 0, 0}, []float64{2, 0, 1}
			},
			[]float64{.5 + .5 + 2.56, 1.5 + .5, 1 + 1.92},
		},
		{
			// The first two hold 900 of 1000 and come before the idle third.
			"exploits",
			Preble{Rebalance: 100},
			Query{Prompt: 1000},
			func(c *Columns) {
				c.Rate, c.Hit, c.Missed = []float64{1000, 1000, 1000}, []float64{900, 900, 896}, []float64{3000, 2000, 0}
			},
			[]float64{3.1, 2.1, behind + .104},
		},
		{
			// Lowest 1.0; the first is above 1.5 and is copied, the second is not.
			"rebalances",
			Preble{},
			Query{Prompt: 1000},
			func(c *Columns) {
				c.Rate, c.Hit, c.Missed = []float64{1000, 1000, 1000}, []float64{900, 900, 0}, []float64{1401, 1400, 0}
			},
			[]float64{behind + 1.501, 1.5, behind + 1},
		},
		{
			// 1,600 tokens of room. The first has computed 1,400 and found 600: of 1,000
			// more 800 do not fit, and 600 in 2,000 tokens are computed again. The second
			// evicts as much as the prompt takes. The third does not say.
			"evicts",
			Preble{},
			Query{Prompt: 1000, BlockTokens: 16},
			func(c *Columns) {
				c.Rate, c.Capacity = []float64{1000, 1000, 1000}, []float64{100, 100, nan}
				c.Missed, c.Found = []float64{1400, 3000, 3000}, []float64{600, 1000, 1000}
			},
			[]float64{1.4 + .8*.3 + 1, 3 + 1*.25 + 1, 3 + 1},
		},
		{
			"its own output length",
			Preble{Output: 10},
			Query{Prompt: 0},
			func(c *Columns) { c.Step, c.Requests = []float64{.1, .1, .1}, []float64{0, 1, 2} },
			[]float64{0, 1, 2},
		},
	})
}

func TestPredictedLatency(t *testing.T) {
	nan := math.NaN()
	check(t, []formula{
		{
			// TTFT 1, 1.5, 3 s of 2; TPOT 50 of 100 ms.
			"least headroom that is positive",
			PredictedLatency{},
			Query{Prompt: 1000},
			func(c *Columns) {
				c.Rate, c.Queued = []float64{1000, 1000, 1000}, []float64{0, 500, 2000}
				c.Step = []float64{.05, .05, .05}
			},
			[]float64{1 - .4 - .1, 1 - .6 - .1, tier + 1.2 + .1},
		},
		{
			// The second misses TPOT; the third's is the mean of .05 and .15, and met.
			"both targets",
			PredictedLatency{},
			Query{Prompt: 1000},
			func(c *Columns) {
				c.Rate, c.Step = []float64{1000, 1000, 1000}, []float64{.05, .15, nan}
			},
			[]float64{1 - .4 - .1, tier + .4 + .3, 1 - .4 - .2},
		},
		{
			// 800 of 1,000 is enough, 799 is not.
			"affinity",
			PredictedLatency{TTFT: time.Second, TPOT: time.Second},
			Query{Prompt: 1000},
			func(c *Columns) {
				c.Rate, c.Hit, c.Queued = []float64{1000, 1000, 1000}, []float64{800, 799, 0}, []float64{3000, 0, 0}
			},
			[]float64{tier + .8*3.2, 2*tier + 1 - .8*.201, 2*tier + 1 - .8},
		},
		{
			// 6.2 s against .2 s is more than 5 s longer.
			"affinity that costs too much",
			PredictedLatency{},
			Query{Prompt: 1000},
			func(c *Columns) {
				c.Rate, c.Hit, c.Queued = []float64{1000, 1000, 5000}, []float64{800, 0, 0}, []float64{6000, 0, 0}
			},
			[]float64{tier + .8*3.1, 1 - .4, 1 - .08},
		},
		{
			"nothing reported",
			PredictedLatency{},
			Query{Prompt: 15_928},
			func(*Columns) {},
			[]float64{.6, .6, .6},
		},
	})
}

func TestLoRA(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	check(t, []formula{
		{
			// 8·20 + 20 blocks for all: loaded, room for both, room for one of two.
			"divides the KV cost",
			LoRA{},
			Query{Prompt: 320, BlockTokens: 16},
			func(c *Columns) {
				c.Adapters, c.AdapterSlots = []float64{2, 2, 2}, []float64{1, 2, 1}
				c.Lately = []float64{299, inf, 301}
			},
			[]float64{180, 225, 300},
		},
		{
			// The worker's own model is always there; unknown slots are enough.
			"own model, unknown slots, another policy",
			LoRA{Of: LeastRequest{}},
			Query{},
			func(c *Columns) {
				c.Requests, c.Adapters = []float64{4, 4, 4}, []float64{0, 9, 9}
				c.AdapterSlots, c.Lately = []float64{nan, nan, 4}, []float64{inf, inf, inf}
			},
			[]float64{4, 5, 4 / .6},
		},
		{
			"ineligible stays so",
			LoRA{Of: nanPolicy{1}, Memory: time.Second},
			Query{},
			func(c *Columns) { c.Adapters, c.Lately = []float64{1, 1, 1}, []float64{1, 1, 2} },
			[]float64{nan, 5, nan},
		},
	})
}

func TestLLMD(t *testing.T) {
	nan := math.NaN()
	check(t, []formula{
		{
			// 4 − (2·prefix + queue + 1 − use): prefix 1, .5, 0; queue 0, 1, .75; use .5,
			// .25, 1.
			"weights",
			LLMD{},
			Query{Prompt: 1000},
			func(c *Columns) {
				c.Hit, c.Waiting = []float64{900, 500, 100}, []float64{4, 0, 1}
				c.Active, c.Capacity = []float64{50, 25, 300}, []float64{100, 100, 200}
			},
			[]float64{4 - 2 - 0 - .5, 4 - 1 - 1 - .75, 4 - 0 - .75 - 0},
		},
		{
			// Who says nothing has its requests wait, 5 of at most 5, and is half full.
			"unknown",
			LLMD{},
			Query{},
			func(c *Columns) {
				c.Waiting, c.Requests = []float64{nan, 1, 0}, []float64{5, 9, 9}
				c.Capacity = []float64{nan, 10, 10}
			},
			[]float64{2 + 1 + .5, 2 + .2 + 0, 2 + 0 + 0},
		},
		{
			"other weights",
			LLMD{KV: 1},
			Query{},
			func(c *Columns) { c.Hit, c.Capacity = []float64{1, 2, 3}, []float64{10, 10, nan} },
			[]float64{0, 0, .5},
		},
	})
}

// natives are all policies, and two that are made of others.
func natives() []Policy {
	return append(Policies(), LoRA{Of: Preble{}}, Blend{[]Weighted{{Mooncake{}, 1}, {LLMD{}, 2}}})
}

// What a policy asks for is filled, and nothing else.
func TestOnlyWhatIsNeeded(t *testing.T) {
	y := adapters(4)
	for _, p := range append(natives(), nanPolicy{1}) {
		r := New(Config{Policy: p})
		y.decide(t, r, Query{Model: "a1", Prompt: 100}, samplesOf(y))
		c, asked := &r.phases[serving].columns, NeedsOf(p)
		got := []bool{
			c.Siblings != nil, c.Active != nil, c.Step != nil, c.TokenBytes != nil, c.Group != nil,
			c.Adapters != nil, c.AdapterSlots != nil, c.Lately != nil, c.Missed != nil, c.Found != nil,
		}
		var want []bool
		for _, n := range []struct {
			needs   Needs
			columns int
		}{{NeedsSiblings, 1}, {NeedsActive, 1}, {NeedsStep, 1}, {NeedsTransfer, 2}, {NeedsAdapters, 3}, {NeedsWindow, 2}} {
			want = append(want, slices.Repeat([]bool{asked&n.needs != 0}, n.columns)...)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", p.Name(), diff)
		}
	}
}

// Without the columns that few ask for, they are unknown: a policy scores all the
// same.
func TestUnfilledIsUnknown(t *testing.T) {
	for _, p := range natives() {
		c := columns(3)
		c.Step, c.TokenBytes, c.Group, c.Adapters, c.AdapterSlots, c.Lately, c.Missed, c.Found = nil, nil, nil, nil, nil, nil, nil, nil
		got := make([]float64, 3)
		p.Score(&Query{Prompt: 100}, c, got)
		if slices.ContainsFunc(got, math.IsNaN) {
			t.Errorf("%s: %v", p.Name(), got)
		}
	}
}

// adapters makes a yard of n workers that move KV and have the model m and two
// adapters, of which they keep one loaded. The first has a1 as its own.
func adapters(n int) *yard {
	var workers []fleet.Worker
	for i := range n {
		w := fleet.Worker{
			ID: fleet.WorkerID(fmt.Sprintf("w%03d", i)), Epoch: 1, Role: fleet.RoleBoth, Compat: "c", Transfer: "t",
			Models: []string{"m", "a1", "a2"},
			Labels: []fleet.Label{{Key: LabelAdapterSlots, Value: "1"}, {Key: LabelKVTokenBytes, Value: "1000"}},
		}
		if i == 0 {
			w.Models = []string{"a1", "m"}
		}
		workers = append(workers, w)
	}
	return &yard{load.NewTable(&measure.Registry{}), fleet.NewView(1, workers)}
}

// Adapters are models beyond the first; the one asked for lately is loaded, for
// the worker that was asked.
func TestAdapterColumns(t *testing.T) {
	y := adapters(3)
	r := New(Config{Policy: LoRA{}, Mode: Never})
	now := start
	decide := func(model string) Decision {
		q := Query{Model: model, Prompt: 160, Now: now}
		d, err := r.Decide(&q, y.lined(), nil, Caches{})
		if err != nil {
			t.Fatal(err)
		}
		r.Commit(&q, &d)
		return d
	}
	first := decide("a2") // not served by the first worker
	now = now.Add(10 * time.Second)
	decide("a2")
	c := &r.phases[serving].columns
	want, other := []float64{math.Inf(1), math.Inf(1)}, first.Serve%2+1
	want[first.Serve-1] = 10
	if diff := cmp.Diff(want, c.Lately); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]float64{2, 2}, c.Adapters); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]float64{1, 1}, c.AdapterSlots); diff != "" {
		t.Error(diff)
	}
	for range 20 {
		if d := decide("a2"); d.Serve == other {
			t.Fatal("another worker loaded the adapter")
		}
		if d := decide("a1"); d.Serve != 0 {
			t.Fatal("a1 is not where it is the worker's own")
		}
	}
	decide("m") // the own model of the last two, an adapter of the first
	if diff := cmp.Diff([]float64{1, 0, 0}, c.Adapters); diff != "" {
		t.Error(diff)
	}
}

// Groups are of those that compute prompts and exchange KV, and there are none
// where nothing is moved.
func TestGroupColumn(t *testing.T) {
	y := newYard(
		fleet.Worker{ID: "both", Compat: "c", Transfer: "t"},
		fleet.Worker{ID: "decodes", Role: fleet.RoleDecode, Compat: "c", Transfer: "t"},
		fleet.Worker{ID: "like", Compat: "c", Transfer: "t"},
		fleet.Worker{ID: "mute", Compat: "c"},
		fleet.Worker{ID: "other", Compat: "d", Transfer: "t"},
	)
	r := New(Config{Policy: Mooncake{}})
	y.decide(t, r, Query{Prompt: 1000}, nil)
	if diff := cmp.Diff([]uint32{1, 0, 1, 0, 2}, r.phases[serving].columns.Group); diff != "" {
		t.Error(diff)
	}
	r = New(Config{Policy: Mooncake{}, Mode: Never})
	y.decide(t, r, Query{Prompt: 1000}, nil)
	if g := r.phases[serving].columns.Group; g != nil {
		t.Errorf("group %v although nothing is moved", g)
	}
}

// A window holds three minutes of an incarnation, in steps of 15 s.
func TestWindow(t *testing.T) {
	view := func(workers ...fleet.Worker) *fleet.View { return fleet.NewView(1, workers) }
	var w window
	two := view(fleet.Worker{ID: "a", Epoch: 1}, fleet.Worker{ID: "b", Epoch: 1})
	at := time.Unix(1500, 0) // a step begins
	w.follow(two, at)
	w.add(0, 100, 30)
	w.follow(two, at.Add(15*time.Second))
	w.add(0, 10, 3)
	w.add(1, 7, 0)
	expect := func(missed, found []float64) {
		t.Helper()
		if !slices.Equal(w.missed, missed) || !slices.Equal(w.found, found) {
			t.Errorf("missed %v found %v, want %v %v", w.missed, w.found, missed, found)
		}
	}
	w.follow(two, at.Add(179*time.Second))
	expect([]float64{110, 7}, []float64{33, 0})
	w.follow(two, at.Add(170*time.Second)) // a clock read a little before
	expect([]float64{110, 7}, []float64{33, 0})
	w.follow(two, at.Add(180*time.Second))
	expect([]float64{10, 7}, []float64{3, 0})
	w.follow(view(fleet.Worker{ID: "a", Epoch: 2}, fleet.Worker{ID: "aa", Epoch: 1}, fleet.Worker{ID: "b", Epoch: 1}), at.Add(180*time.Second))
	expect([]float64{0, 0, 7}, []float64{0, 0, 0})
	w.add(0, 5, 5)
	w.follow(w.view, at.Add(time.Hour))
	expect([]float64{0, 0, 0}, []float64{0, 0, 0})
	w.add(0, 5, 5)
	w.follow(w.view, at.Add(-time.Hour)) // a clock that was set back forgets
	expect([]float64{0, 0, 0}, []float64{0, 0, 0})
}

// A window agrees with a list of all that was given, whatever the clock does
// forwards.
func TestWindowAgreesWithList(t *testing.T) {
	type gift struct {
		period int64
		worker int
		tokens unit.Tokens
	}
	view := fleet.NewView(1, []fleet.Worker{{ID: "a", Epoch: 1}, {ID: "b", Epoch: 1}, {ID: "c", Epoch: 1}})
	rapid.Check(t, func(t *rapid.T) {
		var w window
		var gifts []gift
		now := time.Unix(int64(rapid.IntRange(-1000, 1000).Draw(t, "begin")), 0)
		w.follow(view, now)
		t.Repeat(map[string]func(*rapid.T){
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 200).Draw(t, "seconds")) * time.Second)
				w.follow(view, now)
			},
			"give": func(t *rapid.T) {
				g := gift{w.period, rapid.IntRange(0, 2).Draw(t, "worker"), unit.Tokens(rapid.IntRange(0, 1<<20).Draw(t, "tokens"))}
				w.add(g.worker, g.tokens, 2*g.tokens)
				gifts = append(gifts, g)
			},
			"": func(t *rapid.T) {
				want := make([]float64, 3)
				for _, g := range gifts {
					if w.period-g.period < windowSteps {
						want[g.worker] += float64(g.tokens)
					}
				}
				for i := range want {
					if w.missed[i] != want[i] || w.found[i] != 2*want[i] {
						t.Fatalf("worker %d: %v %v, want %v and twice that", i, w.missed[i], w.found[i], want[i])
					}
				}
			},
		})
	})
}

// Whoever computes a prompt has it in its window.
func TestWindowCountsWhoComputes(t *testing.T) {
	y := newYard(
		fleet.Worker{ID: "d", Role: fleet.RoleDecode, Compat: "c", Transfer: "t"},
		fleet.Worker{ID: "p", Role: fleet.RolePrefill, Compat: "c", Transfer: "t"},
	)
	for mode, want := range map[Mode][]float64{Always: {0, 1000}, Never: {1000, 0}} {
		r := New(Config{Policy: Preble{}, Mode: mode})
		q := Query{Model: "m", Prompt: 1000, Now: start}
		d := y.decide(t, r, q, nil)
		r.Commit(&q, d)
		if diff := cmp.Diff(want, r.window.missed); diff != "" {
			t.Errorf("%v: %s", mode, diff)
		}
	}
}

// Neither scoring nor a decision allocates, where workers move KV, have adapters
// and one of them is out.
func TestNativesDoNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	y := adapters(64)
	samples := samplesOf(y)
	chain := text(1, 32)
	state := prefix.NewState(prefix.Options{})
	for _, w := range y.view.Workers[:8] {
		state.Apply(&prefix.Frame{Kind: prefix.FrameAttach, Worker: w.ID, Epoch: w.Epoch})
		row, _ := state.Table().Find(w.ID, w.Epoch)
		state.Table().Index.Store(row.Worker, chain)
	}
	caches := Caches{Events: state.Table()}
	tried := []load.Key{{ID: "w003", Epoch: 1}}
	for _, p := range natives() {
		r := New(Config{Policy: p})
		lined, now := y.lined(), start
		decide := func() {
			now = now.Add(time.Second)
			q := Query{Model: "a1", Prompt: 520, Chain: chain, BlockTokens: 16, Now: now, Tried: tried}
			d, err := r.Decide(&q, lined, samples, caches)
			if err != nil {
				t.Fatal(err)
			}
			presence := r.Commit(&q, &d)
			presence.Leave()
		}
		for range 300 {
			decide() // scratch grows, and what was decided lately stops growing
		}
		if n := testing.AllocsPerRun(100, decide); n != 0 {
			t.Errorf("%s: %v allocations", p.Name(), n)
		}
	}
}

// Policies that know of prefixes keep groups together nearly as well as one cache
// of the fleet's size, and pile them up nowhere. The one that packs is not among
// them.
func TestNativesKeepGroupsTogether(t *testing.T) {
	for _, policy := range []Policy{Mooncake{}, Preble{}, LoRA{}, LLMD{}} {
		p := newPlay(t, playConfig{engines: 8, blocks: 2048, step: 20 * time.Millisecond, output: 8, policy: policy})
		p.conversations(64, 512, 3, 128, 100, 1)
		p.run()
		if got, want := p.share(), p.oracle(16384); got < .95*want {
			t.Errorf("%s: cached %.3f, the oracle %.3f", policy.Name(), got, want)
		}
		if got := p.busiest(); got > 1.5 {
			t.Errorf("%s: busiest %.2f of the mean", policy.Name(), got)
		}
	}
}
