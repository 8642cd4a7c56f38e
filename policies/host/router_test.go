package host_test

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/policies/host"
)

// candidates are n workers; the columns that the test router reads are a and b.
func candidates(n int) *route.Columns {
	c := &route.Columns{Worker: make([]int32, n), Queued: make([]float64, n), Rate: make([]float64, n), Requests: make([]float64, n)}
	for i := range n {
		c.Queued[i], c.Rate[i], c.Requests[i] = float64(i), 4, float64(n-i)
	}
	return c
}

func newRouter(t testing.TB, score string) *host.Router {
	t.Helper()
	r, err := host.NewRouter(load(t, newHost(t, &services{}), router(score), 1), route.LeastRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRouterScores(t *testing.T) {
	r := newRouter(t, simd)
	cost := make([]float64, 5)
	r.Score(&route.Query{Model: "m", Prompt: 7}, candidates(5), cost)
	if diff := cmp.Diff([]float64{0, 0.25, 0.5, 0.75, 1}, cost); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if r.Name() != "test@1" {
		t.Errorf("name %q", r.Name())
	}
}

// Whatever the guest does, every call has an answer.
func TestRouterFallsBack(t *testing.T) {
	want := make([]float64, 5)
	route.LeastRequest{}.Score(&route.Query{}, candidates(5), want)
	set := func(word string) string {
		return `loop local.get 1 i32.const ` + word + ` i32.store 98304
			local.get 1 i32.const 4 i32.add local.tee 1 local.get 0 i32.const 2 i32.shl i32.lt_u br_if 0 end i32.const 0`
	}
	tests := []struct {
		name, code string
		n          int
		fault      host.Fault
	}{
		{"trap", "unreachable", 5, host.FaultTrap},
		{"endless", "loop br 0 end i32.const 0", 5, host.FaultFuel},
		{"no answer", "i32.const 1", 5, host.FaultRefused},
		{"NaN", set("0x7fc00000"), 5, host.FaultScores},
		{"infinite", set("0x7f800000"), 5, host.FaultScores},
		{"the least there is", set("-8388608"), 5, host.FaultScores}, // -Inf
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRouter(t, tt.code)
			got := make([]float64, tt.n)
			for range 3 {
				r.Score(&route.Query{}, candidates(tt.n), got)
				if diff := cmp.Diff(want, got, cmpopts.EquateNaNs()); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			}
			// While an instance is replaced, the others that come are busy.
			if n := r.Faults(tt.fault) + r.Faults(host.FaultBusy); n != 3 || r.Faults(tt.fault) == 0 {
				t.Errorf("%d faults, %d %s", n, r.Faults(tt.fault), tt.fault)
			}
		})
	}
	t.Run("too many", func(t *testing.T) {
		r := newRouter(t, simd)
		r.Score(&route.Query{}, candidates(rows+1), make([]float64, rows+1))
		if r.Faults(host.FaultRows) != 1 {
			t.Error("no fault")
		}
	})
}

// One candidate without a score is out, and the others are not.
func TestRouterKeepsFiniteScores(t *testing.T) {
	r := newRouter(t, simd)
	c := candidates(3)
	c.Rate[1] = 0 // 1 × ∞
	cost := make([]float64, 3)
	r.Score(&route.Query{}, c, cost)
	if diff := cmp.Diff([]float64{0, math.NaN(), 0.5}, cost, cmpopts.EquateNaNs()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestRouterNeedsItsColumns(t *testing.T) {
	h := newHost(t, &services{})
	needs := strings.Replace(manifest, "queued_tokens", "zone", 1)
	p := load(t, h, parts{manifest: needs}.build(), 1)
	if _, err := host.NewRouter(p, route.LeastRequest{}); !errors.Is(err, host.ErrColumn) {
		t.Errorf("got %v", err)
	}
	// An optional one is unknown: all ones for numbers of that kind, NaN as f32.
	optional := strings.Replace(needs, `"zone"`, `"zone","optional":true`, 1)
	score := "i32.const 98304 i32.const 65536 i32.load 0 i32.const -1 i32.eq f32.convert_i32_u f32.store 0 i32.const 0"
	r, err := host.NewRouter(load(t, h, parts{manifest: optional, score: score}.build(), 1), route.LeastRequest{})
	if err != nil {
		t.Fatal(err)
	}
	cost := make([]float64, 1)
	if r.Score(&route.Query{}, candidates(1), cost); cost[0] != 1 {
		t.Errorf("an unknown zone is not all ones: %v", cost)
	}
}

func TestRouterDoesNotAllocate(t *testing.T) {
	r := newRouter(t, simd)
	c, q, cost := candidates(100), &route.Query{Model: "m"}, make([]float64, 100)
	if got := testing.AllocsPerRun(100, func() { r.Score(q, c, cost) }); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

func BenchmarkRouter(b *testing.B) {
	r := newRouter(b, simd)
	for _, n := range []int{16, 256, 4096} {
		c, q, cost := candidates(n), &route.Query{Model: "m"}, make([]float64, n)
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r.Score(q, c, cost)
			}
		})
	}
}
