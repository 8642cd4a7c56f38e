package route

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/yardmaster/yardmaster/core/mix"
	"github.com/yardmaster/yardmaster/core/prefix"
)

// columns makes columns of n candidates of which nothing is known.
func columns(n int) *Columns {
	c := &Columns{Worker: make([]int32, n), Key: make([]uint64, n)}
	c.Group = make([]uint32, n)
	for _, f := range []*[]float64{
		&c.InFlight, &c.Requests, &c.Queued, &c.Hit, &c.Active,
		&c.Capacity, &c.Running, &c.Waiting, &c.Rate, &c.Siblings, &c.Share,
		&c.Step, &c.TokenBytes, &c.Adapters, &c.AdapterSlots, &c.Lately, &c.Missed, &c.Found,
	} {
		*f = make([]float64, n)
	}
	nan := math.NaN()
	for i := range n {
		c.Worker[i], c.Key[i] = int32(i), mix.Bits(uint64(i)+1)
		c.Running[i], c.Waiting[i], c.Rate[i], c.Capacity[i] = nan, nan, nan, nan
		c.Step[i], c.TokenBytes[i], c.AdapterSlots[i], c.Lately[i] = nan, nan, nan, math.Inf(1)
	}
	return c
}

func TestFormulas(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	tests := []struct {
		name   string
		policy Policy
		query  Query
		fill   func(*Columns)
		want   []float64
	}{
		{
			"turns",
			RoundRobin{},
			Query{Turn: 7},
			func(*Columns) {},
			[]float64{2, 0, 1}, // 7 mod 3 is the second one's turn
		},
		{
			"requests of all",
			LeastRequest{},
			Query{},
			func(c *Columns) { c.InFlight, c.Requests = []float64{1, 2, 3}, []float64{5, 2, 3} },
			[]float64{5, 2, 3},
		},
		{
			"two drawn",
			PowerOfTwo{},
			Query{Draw: 5}, // 5 mod 3 = 2, then (2+1+1 mod 2) mod 3 = 1
			func(c *Columns) { c.Queued, c.Active = []float64{0, 100, 20}, []float64{0, 7, 5} },
			[]float64{inf, 107, 25},
		},
		{
			// s·max(0, (U+n−h)/b) + K + (n−h)/b, n = 320, b = 16.
			"kv cost",
			KVCost{},
			Query{Prompt: 320, BlockTokens: 16},
			func(c *Columns) {
				c.Queued, c.Hit, c.Active = []float64{0, 160, 0}, []float64{0, 320, 160}, []float64{10, 50, 0}
			},
			[]float64{8*20 + 10 + 20, 8*10 + 50 + 0, 8*10 + 0 + 10},
		},
		{
			"kv cost with scale and requests",
			KVCost{Scale: 1, Requests: 2},
			Query{Prompt: 320, BlockTokens: 32},
			func(c *Columns) { c.Requests, c.Hit = []float64{0, 3, 1}, []float64{0, 320, 64} },
			[]float64{10 + 10, 0 + 0 + 6, 8 + 8 + 2},
		},
		{
			// (n−h)·(r+1), and u/(u+1) between equals.
			"lmetric",
			LMetric{},
			Query{Prompt: 1000},
			func(c *Columns) {
				c.Hit, c.Requests, c.Queued = []float64{900, 0, 900}, []float64{3, 0, 3}, []float64{0, 0, 1}
			},
			[]float64{400, 1000, 400.5},
		},
		{
			// U + 128 r + (n − 900) + min(20·(900−h), tau) + min(2048, n−h)·share.
			"sticky",
			Sticky{},
			Query{Prompt: 1000},
			func(c *Columns) {
				c.Hit, c.Requests, c.Queued = []float64{900, 0, 500}, []float64{2, 0, 1}, []float64{300, 0, 0}
				c.Share = []float64{1.5, .5, 1}
			},
			// 80·0.9 for each token: 900 and 400.
			[]float64{300 + 256 + 100 + 150, 100 + 64800 + 500, 128 + 100 + 28800 + 500},
		},
		{
			"sticky at most MaxWait, slower ones dearer",
			Sticky{MaxWait: time.Second},
			Query{Prompt: 10000},
			func(c *Columns) {
				c.Hit, c.Rate = []float64{9000, 0, 0}, []float64{1000, 3000, nan}
			}, // tau = 3,000, mean rate 2,000
			[]float64{1000 * 2, (1000 + 3000) * 2 / 3., 1000 + 3000},
		},
		{
			"sticky where siblings crowd the holder",
			Sticky{},
			Query{Prompt: 1000},
			func(c *Columns) {
				c.Hit, c.Requests, c.Siblings = []float64{900, 0, 0}, []float64{5, 0, 1}, []float64{3, 0, 0}
			},
			[]float64{behind + 640 + 1000, 1000, 128 + 1000},
		},
		{
			"sticky where the holder has far more than the idlest",
			Sticky{},
			Query{Prompt: 1000},
			func(c *Columns) { c.Hit, c.Requests = []float64{900, 0, 0}, []float64{17, 0, 16} },
			[]float64{behind + 17*128 + 1000, 1000, 16*128 + 1000},
		},
		{
			// Least-request 0, .5, 1 and power-of-two 1, 1, 0 (the first is not drawn).
			"blend",
			Blend{[]Weighted{{LeastRequest{}, 3}, {PowerOfTwo{}, 1}}},
			Query{Draw: 5},
			func(c *Columns) { c.Requests, c.Active = []float64{2, 4, 6}, []float64{0, 9, 1} },
			[]float64{0 + 1, 1.5 + 1, 3 + 0},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := columns(3)
			tt.fill(c)
			got := make([]float64, 3)
			tt.policy.Score(&tt.query, c, got)
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// Each prefix has a home, homes are spread, a worker that leaves moves only its
// own, and a loaded one passes requests on to the next in the prefix's order.
func TestBoundedHash(t *testing.T) {
	home := func(c *Columns, q *Query) int {
		cost := make([]float64, len(c.Worker))
		BoundedHash{}.Score(q, c, cost)
		best := 0
		for i := range cost {
			if cost[i] < cost[best] {
				best = i
			}
		}
		return best
	}
	eight, seven := columns(8), columns(7)
	counts := make([]int, 8)
	for k := range 4000 {
		q := &Query{Chain: []prefix.Hash{prefix.Hash(k)}}
		at := home(eight, q)
		counts[at]++
		if at != 7 && home(seven, q) != at {
			t.Fatalf("prefix %d moved although its worker stayed", k)
		}
	}
	for i, n := range counts {
		if n < 400 || n > 600 {
			t.Errorf("worker %d is home to %d of 4000", i, n)
		}
	}
	q := &Query{Chain: []prefix.Hash{1}}
	first := home(eight, q)
	eight.Requests[first] = 2 // of ceil(1.25·3/8) = 1
	second := home(eight, q)
	if second == first {
		t.Error("a full worker got more")
	}
	for i := range eight.Requests {
		eight.Requests[i] = 8 // bound ceil(1.25·65/8) = 11
	}
	eight.Requests[first] = 10
	if home(eight, q) != first {
		t.Error("a worker below the bound was passed over")
	}
	long := &Query{Chain: make([]prefix.Hash, 20)}
	long.Chain[15] = 1
	if home(columns(8), long) != first {
		t.Error("the key is not the 16th block")
	}
}

func TestPolicyNames(t *testing.T) {
	for _, p := range Policies() {
		if got, err := PolicyNamed(p.Name()); err != nil || got != p {
			t.Errorf("%s: %v %v", p.Name(), got, err)
		}
	}
	got, err := PolicyNamed("sticky=2, least-request")
	if err != nil || got.Name() != "sticky=2,least-request=1" {
		t.Errorf("%v %v", got, err)
	}
	if again, err := PolicyNamed(got.Name()); err != nil || !cmp.Equal(again, got) {
		t.Errorf("%v %v", again, err)
	}
	for _, bad := range []string{"", "best", "sticky=0", "sticky=x", "sticky=NaN", "sticky=Inf", "sticky,,lmetric", "=1", "sticky=1=2"} {
		if p, err := PolicyNamed(bad); err == nil {
			t.Errorf("%q is %v", bad, p)
		}
	}
}

// What one part finds ineligible is out of the blend.
func TestBlendKeepsIneligible(t *testing.T) {
	c := columns(2)
	cost := make([]float64, 2)
	Blend{[]Weighted{{LeastRequest{}, 1}, {nanPolicy{1}, 1}}}.Score(&Query{}, c, cost)
	if !math.IsNaN(cost[0]) || math.IsNaN(cost[1]) {
		t.Error(cost)
	}
}
