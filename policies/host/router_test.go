package host_test

import (
	"encoding/binary"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/abi/abitest"
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

// An optional column of a later version is unknown.
func TestColumnsOfLaterVersions(t *testing.T) {
	p := abitest.Policy{Columns: []string{"?of_a_later_version"}, Code: "i32.const @out i32.const @0 f32.load 0 i32.const @0 f32.load 0 f32.ne f32.convert_i32_u f32.store 0 i32.const 0"}
	r, err := host.NewRouter(loadOne(t, newHost(t, &services{}), p.Build()), route.LeastRequest{})
	if err != nil {
		t.Fatal(err)
	}
	cost := make([]float64, 1)
	if r.Score(&route.Query{}, candidates(1), cost); cost[0] != 1 {
		t.Errorf("an unknown number is not NaN: %v", cost)
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

// Every column of the contract comes from routing, with its value.
func TestRouterFillsEveryColumn(t *testing.T) {
	const n = 20
	c := &route.Columns{
		Worker: make([]int32, n), Key: make([]uint64, n), Group: make([]uint32, n), Role: make([]uint32, n), Zone: make([]uint32, n),
	}
	floats := []*[]float64{
		&c.InFlight, &c.Requests, &c.Queued, &c.Hit, &c.Active, &c.Capacity, &c.Running, &c.Waiting, &c.Rate, &c.Siblings, &c.Share,
		&c.Step, &c.TokenBytes, &c.Adapters, &c.AdapterSlots, &c.Lately, &c.Missed, &c.Found, &c.Age,
	}
	for k, column := range floats {
		*column = make([]float64, n)
		for i := range n {
			(*column)[i] = float64(100*k + i)
		}
	}
	for i := range n {
		c.Key[i], c.Group[i], c.Role[i], c.Zone[i] = uint64(i)<<32|uint64(i+50), uint32(i+1), uint32(i%3+1), uint32(i)
	}
	const at = 7 // the row that is looked at
	want := map[string]float64{
		"key_low": 57, "key_high": 7, "role": 2, "zone": 7, "lora": 0, "in_flight": 7, "requests": 107, "queued_tokens": 207, "hit_tokens": 307,
		"active_blocks": 407, "capacity_blocks": 507, "running": 607, "waiting": 707, "prefill_rate": 807, "prefill_seconds_per_token": 1. / 807,
		"siblings": 907, "share": 1007, "step_ms": 1_107_000, "kv_token_bytes": 1207, "adapters": 1307, "adapter_slots": 1407, "adapter_idle_s": 1507,
		"missed_tokens": 1607, "found_tokens": 1707, "age_ms": 1_807_000, "group": 8,
	}
	h := newHost(t, &services{})
	for _, column := range abi.Router.Columns() {
		load := "f32.load"
		if column.Type == abi.U32 {
			load = "i32.load"
		}
		code := "local.get 1 local.get 1 " + load + " @0 "
		if column.Type == abi.U32 {
			code += "f32.convert_i32_u "
		}
		p := abitest.Policy{Columns: []string{column.Name}, Locals: "i32", Code: abitest.Loop(code + "f32.store @out")}
		r, err := host.NewRouter(loadOne(t, h, p.Build()), route.LeastRequest{})
		if err != nil {
			t.Errorf("%s: %v", column.Name, err)
			continue
		}
		cost := make([]float64, n)
		if f := r.Try(&route.Query{}, c, cost); f != host.NoFault {
			t.Fatalf("%s: %s", column.Name, f)
		}
		if wanted, ok := want[column.Name]; !ok || cost[at] != float64(float32(wanted)) {
			t.Errorf("%s is %v, want %v", column.Name, cost[at], wanted)
		}
	}
}

// A column that routing does not have now is unknown, also in an instance that had it
// before.
func TestColumnsAreForgotten(t *testing.T) {
	p := abitest.Policy{Columns: []string{"step_ms"}, Locals: "i32", Code: abitest.Loop("local.get 1 local.get 1 f32.load @0 f32.store @out")}
	r, err := host.NewRouter(loadOne(t, newHost(t, &services{}), p.Build()), route.LeastRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Needs() != route.NeedsStep {
		t.Errorf("needs %b", r.Needs())
	}
	c, cost := candidates(3), make([]float64, 3)
	c.Step = []float64{1, 2, 3}
	if f := r.Try(&route.Query{}, c, cost); f != host.NoFault || cost[2] != 3000 {
		t.Errorf("%s, costs %v", f, cost)
	}
	c.Step = nil
	if f := r.Try(&route.Query{}, c, cost); f != host.FaultScores {
		t.Errorf("%s, costs %v", f, cost)
	}
}

func TestRouterPicks(t *testing.T) {
	const take = "i32.const @0 f32.load 0 i64.trunc_sat_f32_s" // the first worker's queue says whom
	p := abitest.Policy{Export: abi.ExportRoute, Columns: []string{"queued_tokens"}, Code: take}
	r, err := host.NewRouter(loadOne(t, newHost(t, &services{}), p.Build()), route.LeastRequest{})
	if err != nil {
		t.Fatal(err)
	}
	c, cost := candidates(4), make([]float64, 4)
	c.Queued[0] = 2
	r.Score(&route.Query{}, c, cost)
	inf := math.Inf(1)
	if diff := cmp.Diff([]float64{inf, inf, 0, inf}, cost); diff != "" {
		t.Error(diff)
	}
	fallback := make([]float64, 4)
	route.LeastRequest{}.Score(&route.Query{}, c, fallback)
	for row, want := range map[float64]host.Fault{-1: host.FaultAbstains, 4: host.FaultRefused, -2: host.FaultRefused, 1e9: host.FaultRefused} {
		c.Queued[0] = row
		before := r.Faults(want)
		r.Score(&route.Query{}, c, cost)
		if r.Faults(want) != before+1 {
			t.Errorf("row %v: counts %+v", row, r.Counts())
		}
		if diff := cmp.Diff(fallback, cost); diff != "" {
			t.Errorf("row %v: the fallback did not decide: %s", row, diff)
		}
	}
	if n := r.Counts(); n.Answered != 1 || n.Guilty() != 3 {
		t.Errorf("counts %+v", n)
	}
}

func TestRequestBlock(t *testing.T) {
	// Copies the words of the request block into the scores.
	p := abitest.Policy{Locals: "i32", Code: abitest.Loop("local.get 1 local.get 1 i32.load @request f32.convert_i32_u f32.store @out")}
	r, err := host.NewRouter(loadOne(t, newHost(t, &services{}), p.Build()), route.LeastRequest{})
	if err != nil {
		t.Fatal(err)
	}
	q := route.Query{
		Model: "m", Prompt: 7, BlockTokens: 16, Draw: 5, Tenant: 2 << 32, Session: 3 << 32, Class: 4, Output: 9, Prefill: true,
		First: 500 * time.Millisecond, Waited: 2 * time.Second,
	}
	want := abi.RouterRequest{
		Seed: 5, Model: xxhash.Sum64String("m"), Tenant: 2 << 32, Session: 3 << 32, Prompt: 7, Output: 9, BlockTokens: 16, Class: 4, Phase: 1,
		SLOFirst: 500, SLOBetween: float32(math.NaN()), WaitedMillis: 2000,
	}
	block := make([]byte, abi.RouterRequestSize)
	want.Put(block)
	const words = abi.RouterRequestSize / 4
	cost := make([]float64, words)
	if f := r.Try(&q, candidates(words), cost); f != host.NoFault {
		t.Fatal(f)
	}
	for i := range words {
		if w := float64(float32(binary.LittleEndian.Uint32(block[4*i:]))); cost[i] != w {
			t.Errorf("word %d is %v, want %v", i, cost[i], w)
		}
	}
}

func loadOne(t testing.TB, h *host.Host, wasm []byte) *host.Policy { return load(t, h, wasm, 1) }
