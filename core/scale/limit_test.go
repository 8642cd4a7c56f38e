package scale

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/fleet"
)

// pools makes a window of pools that have ready replicas each.
func pools(now time.Time, budget uint32, list ...Pool) *Window {
	return &Window{Now: now, Interval: time.Second, Budget: budget, Pools: list}
}

func pool(model string, ready, drains float64, l Limits) Pool {
	s := Unknown()
	s.Ready, s.Pending, s.Draining = ready, 0, drains
	return Pool{Key: Key{model, fleet.RoleBoth}, Limits: l, Samples: []Sample{s}}
}

func TestLimiter(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	tests := []struct {
		name    string
		cfg     LimiterConfig
		pools   []Pool
		want    []uint32
		desired []uint32
	}{
		{"grows to double at once", LimiterConfig{}, []Pool{pool("a", 4, 0, Limits{})}, []uint32{100}, []uint32{8}},
		{"one may become three", LimiterConfig{}, []Pool{pool("a", 1, 0, Limits{})}, []uint32{100}, []uint32{3}},
		{"the fewest are had at once", LimiterConfig{}, []Pool{pool("a", 0, 0, Limits{Least: 5})}, []uint32{0}, []uint32{5}},
		{"does not shrink before its time", LimiterConfig{}, []Pool{pool("a", 4, 0, Limits{})}, []uint32{1}, []uint32{4}},
		{"shrinks by one", LimiterConfig{Hold: -1}, []Pool{pool("a", 4, 0, Limits{})}, []uint32{1}, []uint32{3}},
		{"not above the most", LimiterConfig{}, []Pool{pool("a", 2, 0, Limits{Most: 3})}, []uint32{9}, []uint32{3}},
		{"a lower most counts at once", LimiterConfig{}, []Pool{pool("a", 9, 0, Limits{Most: 3})}, []uint32{9}, []uint32{3}},
		{"growth waits for those that drain", LimiterConfig{Budget: 4}, []Pool{pool("a", 2, 2, Limits{})}, []uint32{4}, []uint32{2}},
		{
			"growth waits for another pool's shrinking",
			LimiterConfig{Budget: 6, Hold: -1},
			[]Pool{pool("a", 4, 0, Limits{}), pool("b", 2, 0, Limits{})},
			[]uint32{1, 4},
			[]uint32{3, 2},
		},
		{
			"the fewest come first",
			LimiterConfig{Budget: 3},
			[]Pool{pool("a", 1, 0, Limits{}), pool("b", 0, 0, Limits{Least: 2})},
			[]uint32{3, 0},
			[]uint32{1, 2},
		},
		{
			"a smaller budget cuts the largest",
			LimiterConfig{Budget: 4},
			[]Pool{pool("a", 4, 0, Limits{Least: 1}), pool("b", 2, 0, Limits{Least: 2})},
			[]uint32{4, 2},
			[]uint32{2, 2},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := make([]Want, len(tt.want))
			for i, n := range tt.want {
				want[i] = Want{Replicas: n}
			}
			plan := NewLimiter(tt.cfg).Step(pools(now, 0, tt.pools...), want, nil, "test")
			if err := plan.Validate(); err != nil {
				t.Fatal(err)
			}
			for i, p := range plan.Pools {
				if p.Desired != tt.desired[i] {
					t.Errorf("pool %s gets %d (%s), want %d", p.Key, p.Desired, p.Reason, tt.desired[i])
				}
			}
		})
	}
}

func TestShrinkingTakesTheMostOfTheHold(t *testing.T) {
	l := NewLimiter(LimiterConfig{Hold: time.Minute, Shrink: 10})
	now := time.UnixMilli(1_000_000)
	plan := &Plan{Pools: []PoolPlan{{Key: Key{"a", fleet.RoleBoth}, Desired: 8}}}
	for _, step := range []struct {
		after time.Duration
		want  uint32
		got   uint32
	}{{0, 2, 8}, {30 * time.Second, 5, 8}, {60 * time.Second, 3, 5}, {61 * time.Second, 3, 5}} {
		plan = l.Step(pools(now.Add(step.after), 0, pool("a", float64(plan.Pools[0].Desired), 0, Limits{})), []Want{{Replicas: step.want}}, plan, "")
		if got := plan.Pools[0].Desired; got != step.got {
			t.Errorf("after %v: %d, want %d", step.after, got, step.got)
		}
	}
}

// TestBudgetIsNeverExceeded is invariant 13: whatever policies want, however slowly
// replicas start and drain, and whenever a new leader begins with nothing but the
// plan, there are never more replicas than the budget allows.
func TestBudgetIsNeverExceeded(t *testing.T) {
	type yard struct{ ready, pending, draining int }
	rapid.Check(t, func(t *rapid.T) {
		budget := rapid.Uint32Range(1, 20).Draw(t, "budget")
		n := rapid.IntRange(1, 4).Draw(t, "pools")
		yards := make([]yard, n)
		limits := make([]Limits, n)
		for i := range limits {
			limits[i].Least = rapid.Uint32Range(0, 3).Draw(t, "least")
			limits[i].Most = rapid.Uint32Range(0, 12).Draw(t, "most")
		}
		cfg := LimiterConfig{Budget: budget, Hold: time.Duration(rapid.IntRange(-1, 3).Draw(t, "hold")) * time.Second}
		limiter := NewLimiter(cfg)
		var plan *Plan
		now := time.UnixMilli(1_000_000)
		total := func() (sum int) {
			for _, y := range yards {
				sum += y.ready + y.pending + y.draining
			}
			return sum
		}
		t.Repeat(map[string]func(*rapid.T){
			"tick": func(t *rapid.T) {
				now = now.Add(time.Second)
				w := pools(now, 0)
				want := make([]Want, n)
				for i, y := range yards {
					p := pool(string(rune('a'+i)), float64(y.ready), float64(y.draining), limits[i])
					p.Samples[0].Pending = float64(y.pending)
					w.Pools = append(w.Pools, p)
					want[i] = Want{Replicas: rapid.Uint32Range(0, 30).Draw(t, "want"), Keep: rapid.Bool().Draw(t, "keep")}
				}
				plan = limiter.Step(w, want, plan, "random")
				if err := plan.Validate(); err != nil {
					t.Fatal(err)
				}
			},
			"reconcile": func(t *rapid.T) { // an actuator follows the plan
				if plan == nil {
					t.Skip()
				}
				i := rapid.IntRange(0, n-1).Draw(t, "pool")
				y, desired := &yards[i], int(plan.Pools[i].Desired)
				for y.ready+y.pending < desired {
					y.pending++
				}
				for y.ready+y.pending > desired {
					if y.pending > 0 {
						y.pending--
					} else {
						y.ready--
					}
					y.draining++
				}
			},
			"progress": func(t *rapid.T) {
				y := &yards[rapid.IntRange(0, n-1).Draw(t, "pool")]
				started, gone := rapid.IntRange(0, y.pending).Draw(t, "started"), rapid.IntRange(0, y.draining).Draw(t, "gone")
				y.pending, y.ready, y.draining = y.pending-started, y.ready+started, y.draining-gone
			},
			"leader": func(*rapid.T) { limiter = NewLimiter(cfg) },
			"": func(t *rapid.T) {
				if got := total(); got > int(budget) {
					t.Fatalf("%d replicas, over the budget of %d: %+v", got, budget, yards)
				}
			},
		})
	})
}

func TestHeld(t *testing.T) {
	for _, tt := range []struct {
		plan *Plan
		want bool
	}{{nil, false}, {&Plan{}, false}, {&Plan{Policy: ByHand}, true}, {&Plan{Policy: Released}, false}} {
		if got := tt.plan.Held(); got != tt.want {
			t.Errorf("%+v: %v", tt.plan, got)
		}
	}
}

// A worker belongs to the pool of its base model, whatever adapters it has.
func TestKeyOf(t *testing.T) {
	w := &fleet.Worker{Role: fleet.RoleDecode, Models: []string{"base", "adapter"}}
	if got := KeyOf(w); got != (Key{Model: "base", Role: fleet.RoleDecode}) {
		t.Errorf("%v", got)
	}
	if got := KeyOf(&fleet.Worker{Role: fleet.RoleBoth}); got != (Key{Role: fleet.RoleBoth}) {
		t.Errorf("%v", got)
	}
}
