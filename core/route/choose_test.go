package route

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/core/fleet"
)

// hand is a chooser and remembers what it was asked.
type hand struct {
	choice *Choice
	asked  Query
	done   []*Choice
}

func (h *hand) Choose(q *Query) *Choice { h.asked = *q; return h.choice }
func (h *hand) Done(c *Choice)          { h.done = append(h.done, c) }

// tryout is a shadow.
type tryout struct {
	Policy
	agreed []bool
}

func (s *tryout) Compared(agrees bool) { s.agreed = append(s.agreed, agrees) }

// fixedCost gives each candidate its place's cost.
type fixedCost []float64

func (fixedCost) Name() string                                 { return "fixed" }
func (p fixedCost) Score(_ *Query, _ *Columns, cost []float64) { copy(cost, p) }

func TestChooserNamesThePolicy(t *testing.T) {
	y := newYard(fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"}, fleet.Worker{ID: "c"})
	h := &hand{}
	r := New(Config{Policy: fixedCost{0, 1, 2}, Chooser: h, Mode: Never})
	if d := y.decide(t, r, Query{}, nil); d.Server().ID != "a" || d.Mandate != (Mandate{Policy: "fixed"}) {
		t.Errorf("without a choice: %s by %+v", d.Server().ID, d.Mandate)
	}
	mandate := Mandate{Policy: "mine@2", Digest: "ab", Index: 17, Canary: true}
	h.choice = NewChoice(fixedCost{2, 1, 0}, nil, mandate)
	d := y.decide(t, r, Query{Session: 5, Seed: 99, Waited: time.Second}, nil)
	if d.Server().ID != "c" || d.Mandate != mandate || d.Fallback != "" {
		t.Errorf("%s by %+v, fallback %q", d.Server().ID, d.Mandate, d.Fallback)
	}
	if h.asked.Session != 5 || h.asked.Draw != 99 {
		t.Errorf("asked with %+v", h.asked)
	}
	if !slices.Equal(h.done, []*Choice{h.choice}) {
		t.Errorf("done: %v", h.done)
	}
}

// A policy that was chosen and finds nobody eligible makes the configured one
// decide.
func TestChosenPolicyCannotMakeDecisionsImpossible(t *testing.T) {
	y := newYard(fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"})
	nan := math.NaN()
	h := &hand{choice: NewChoice(fixedCost{nan, nan}, nil, Mandate{Policy: "none@1"})}
	r := New(Config{Policy: Sticky{}, Chooser: h, Mode: Never})
	d := y.decide(t, r, Query{}, nil)
	if d.Serve == None || d.Fallback != "none" || d.Policy != "none@1" {
		t.Errorf("%+v", d)
	}
}

// What cannot answer says so, and the fallback that it names decides.
type helpless struct{}

func (helpless) Name() string { return "helpless" }
func (helpless) Score(_ *Query, c *Columns, cost []float64) {
	c.FellBack("fuel")
	for i := range cost {
		cost[i] = math.NaN()
	}
}

func TestFallback(t *testing.T) {
	y := newYard(fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"})
	c := NewChoice(helpless{}, nil, Mandate{Policy: "h@1"})
	r := New(Config{Policy: fixedCost{0, 1}, Chooser: &hand{choice: c}, Mode: Never})
	for _, tt := range []struct {
		fallback Policy
		want     fleet.WorkerID
	}{{nil, "a"}, {fixedCost{1, 0}, "b"}, {helpless{}, "a"}} {
		c.Fallback = tt.fallback
		if d := y.decide(t, r, Query{}, nil); d.Server().ID != tt.want || d.Fallback != "fuel" {
			t.Errorf("%v: %s, fallback %q", tt.fallback, d.Server().ID, d.Fallback)
		}
	}
	s := &tryout{Policy: helpless{}}
	r = New(Config{Chooser: &hand{choice: NewChoice(fixedCost{0, 1}, s, Mandate{})}, Mode: Never})
	if d := y.decide(t, r, Query{}, nil); d.Fallback != "" || len(s.agreed) != 0 {
		t.Errorf("a helpless shadow: fallback %q, compared %v", d.Fallback, s.agreed)
	}
}

// A shadow that reads more than the fallback does finds its columns filled after the
// fallback has decided.
func TestShadowAfterTheFallback(t *testing.T) {
	y := newYard(fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"})
	for _, fallback := range []Policy{nil, LeastRequest{}} {
		s := &tryout{Policy: Blend{Parts: []Weighted{{KVCost{}, 1}, {Sticky{}, 1}, {LoRA{}, 1}, {PredictedLatency{}, 1}, {Mooncake{}, 1}}}}
		c := NewChoice(helpless{}, s, Mandate{Policy: "h@1"})
		c.Fallback = fallback
		r := New(Config{Policy: RoundRobin{}, Chooser: &hand{choice: c}, Mode: Never})
		if d := y.decide(t, r, Query{}, nil); d.Fallback != "fuel" || len(s.agreed) != 1 {
			t.Errorf("fallback %q, compared %v", d.Fallback, s.agreed)
		}
	}
}

// Where a chooser names no policy the configured one decides, under its own name, and
// the shadow sees it.
func TestShadowBesideTheConfiguredPolicy(t *testing.T) {
	y := newYard(fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"})
	s := &tryout{Policy: fixedCost{1, 0}}
	h := &hand{choice: NewChoice(nil, s, Mandate{Policy: "shadowed", Index: 7})}
	r := New(Config{Policy: fixedCost{0, 1}, Chooser: h, Mode: Never})
	d := y.decide(t, r, Query{}, nil)
	if d.Server().ID != "a" || d.Mandate != (Mandate{Policy: "fixed"}) || d.Fallback != "" {
		t.Errorf("%s by %+v, fallback %q", d.Server().ID, d.Mandate, d.Fallback)
	}
	if !slices.Equal(s.agreed, []bool{false}) {
		t.Errorf("compared %v", s.agreed)
	}
	h.choice = NewChoice(nil, nil, Mandate{})
	if d := y.decide(t, r, Query{}, nil); d.Server().ID != "a" || len(s.agreed) != 1 {
		t.Errorf("%s, compared %v", d.Server().ID, s.agreed)
	}
}

func TestShadowIsComparedAndChangesNothing(t *testing.T) {
	y := newYard(fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"}, fleet.Worker{ID: "c"})
	run := func(shadow Shadow) (ids []fleet.WorkerID, r *Router) {
		r = New(Config{Chooser: &hand{choice: NewChoice(fixedCost{1, 1, 1}, shadow, Mandate{})}, Mode: Never, Seed: 4})
		for range 200 {
			ids = append(ids, y.decide(t, r, Query{}, nil).Server().ID)
		}
		return ids, r
	}
	alone, _ := run(nil)
	s := &tryout{Policy: fixedCost{0, 0, 9}}
	beside, r := run(s)
	if !slices.Equal(alone, beside) {
		t.Error("a shadow changed the decisions")
	}
	for i, id := range beside {
		if s.agreed[i] != (id != "c") {
			t.Fatalf("%s: agrees %v", id, s.agreed[i])
		}
	}
	d := y.decide(t, r, Query{}, nil)
	var e Explanation
	r.Explain(d, &e)
	if e.Shadow != "fixed" {
		t.Errorf("shadow %q", e.Shadow)
	}
	for _, c := range e.Serving {
		if want := map[fleet.WorkerID]float64{"c": 9}[c.Worker]; c.Shadow != want {
			t.Errorf("%s: the shadow found %v", c.Worker, c.Shadow)
		}
	}
}

func TestExplainShowsParts(t *testing.T) {
	y := newYard(fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"})
	b := Blend{Parts: []Weighted{{fixedCost{0, 10}, 1}, {fixedCost{7, 5}, 3}}}
	r := New(Config{Policy: b, Mode: Never})
	var e Explanation
	for range 3 { // its memory serves again
		d := y.decide(t, r, Query{}, nil)
		r.Explain(d, &e)
		got := map[fleet.WorkerID][]float64{}
		for _, c := range e.Serving {
			got[c.Worker] = c.Parts
		}
		want := map[fleet.WorkerID][]float64{"a": {0, 7}, "b": {10, 5}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if !slices.Equal(e.Policies, []string{"fixed", "fixed"}) {
			t.Errorf("parts %v", e.Policies)
		}
		cost, requests := r.Basis()
		if cost != 1 || requests != 0 || d.Server().ID != "b" {
			t.Errorf("%s: cost %v with %v requests", d.Server().ID, cost, requests)
		}
	}
}

func TestChosenDecisionsDoNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	y := bigYard(64)
	h := &hand{choice: NewChoice(Sticky{}, &tryout{Policy: LeastRequest{}, agreed: make([]bool, 0, 1000)}, Mandate{Policy: "sticky"})}
	h.done = make([]*Choice, 0, 1000)
	r := New(Config{Chooser: h, Mode: Never})
	q := Query{Model: "m", Prompt: 1000, Now: start}
	lined := y.lined()
	decide := func() {
		if _, err := r.Decide(&q, lined, nil, Caches{}); err != nil {
			t.Fatal(err)
		}
	}
	decide()
	if n := testing.AllocsPerRun(100, decide); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
