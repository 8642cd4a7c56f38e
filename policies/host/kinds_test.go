package host_test

import (
	"context"
	"errors"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/abi/abitest"
	"github.com/yardmaster/yardmaster/policies/host"
)

func TestAdmission(t *testing.T) {
	// Refuses prompts of more than 100 tokens, with 503 after 5 s; serves others with
	// priority 9; traps at 7.
	const code = `i32.const @request i32.load 24 i32.const 7 i32.eq if unreachable end
		i32.const @request i32.load 24 i32.const 100 i32.gt_u if i64 i64.const 21474836480000 i64.const 32964608 i64.or i64.const 2 i64.or else i64.const 2304 end`
	build := func(fail string) *host.Policy {
		return loadOne(t, newHost(t, &services{}), abitest.Policy{Kind: abi.Admission, Fail: fail, Code: code}.Build())
	}
	refuse := admit.Verdict{Action: admit.Reject, Unavailable: true, RetryAfter: 5 * time.Second, Reason: "policy"}
	tests := []struct {
		name, fail string
		fallback   admit.Policy
		prompt     int
		want       admit.Verdict
		fault      host.Fault
	}{
		{"served", "", nil, 50, admit.Verdict{Priority: 9}, host.NoFault},
		{"refused", "", nil, 500, refuse, host.NoFault},
		{"fails open", "open", nil, 7, admit.Open{}.Admit(&admit.Ask{}), host.FaultTrap},
		{"fails closed", "closed", admit.Open{}, 7, admit.Verdict{Action: admit.Reject, Unavailable: true, RetryAfter: time.Second, Reason: "policy_failed"}, host.FaultTrap},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, err := host.NewAdmission(build(tt.fail), tt.fallback)
			if err != nil {
				t.Fatal(err)
			}
			got := a.Admit(&admit.Ask{Prompt: unit.Tokens(tt.prompt), KVUsage: math.NaN()})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if n := a.Counts(); tt.fault != host.NoFault && n.Faults[tt.fault] != 1 || tt.fault == host.NoFault && n.Answered != 1 {
				t.Errorf("counts %+v", n)
			}
		})
	}
	if _, err := host.NewAutoscaler(build("")); err == nil {
		t.Error("an admission policy was taken for an autoscaler")
	}
}

func TestAdmissionDoesNotAllocate(t *testing.T) {
	a, err := host.NewAdmission(loadOne(t, newHost(t, &services{}), abitest.Policy{Kind: abi.Admission}.Build()), nil)
	if err != nil {
		t.Fatal(err)
	}
	ask := &admit.Ask{Prompt: 100}
	if n := testing.AllocsPerRun(100, func() { a.Admit(ask) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func window(pools, samples int) *scale.Window {
	w := &scale.Window{Now: time.UnixMilli(1_800_000_000_000), Interval: time.Second, Budget: 10}
	for p := range pools {
		pool := scale.Pool{Limits: scale.Limits{Least: 1, Most: 8}}
		pool.Role = fleet.RolePrefill
		for s := range samples {
			sample := scale.Unknown()
			sample.Arrivals = float64(100*p + s)
			pool.Samples = append(pool.Samples, sample)
		}
		w.Pools = append(w.Pools, pool)
	}
	return w
}

// The policy wants as many replicas as the newest sample of a pool has arrivals; the
// reason is the pool's role.
func TestAutoscaler(t *testing.T) {
	// desired[p] = arrivals[p × samples + samples − 1]
	const newest = `local.get 1 i32.const 2 i32.shr_u i32.const @request i32.load 28 i32.mul i32.const @request i32.load 28 i32.add i32.const 1 i32.sub i32.const 2 i32.shl `
	code := abitest.Loop(`local.get 1 ` + newest + `f32.load @0 i32.trunc_sat_f32_u i32.store @out local.get 1 ` + newest + `i32.load @1 i32.store @out1`)
	p := abitest.Policy{Kind: abi.Autoscaler, Columns: []string{"arrivals", "role"}, Locals: "i32", Rows: 64, Code: code}
	a, err := host.NewAutoscaler(loadOne(t, newHost(t, &services{}), p.Build()))
	if err != nil {
		t.Fatal(err)
	}
	for _, samples := range []int{1, 10, 100} { // of 100 there is room for 21
		want := make([]scale.Want, 3)
		a.Tick(window(3, samples), want)
		for i := range want {
			if n := uint32(100*i + samples - 1); want[i].Replicas != n || want[i].Keep || want[i].Reason != "test reason 1" {
				t.Errorf("%d samples, pool %d: %+v, want %d", samples, i, want[i], n)
			}
		}
	}
	want := make([]scale.Want, 65)
	a.Tick(window(65, 1), want)
	if a.Last() != host.FaultRows || !want[64].Keep {
		t.Errorf("%s, %+v", a.Last(), want[64])
	}
	if n := a.Counts(); n.Answered != 3 || n.Guilty() != 0 {
		t.Errorf("counts %+v", n)
	}
}

func TestAutoscalersColumnsAreAllThere(t *testing.T) {
	h := newHost(t, &services{})
	for _, c := range abi.Autoscaler.Columns() {
		p := abitest.Policy{Kind: abi.Autoscaler, Columns: []string{c.Name}}
		if _, err := host.NewAutoscaler(loadOne(t, h, p.Build())); err != nil {
			t.Error(err)
		}
	}
	for _, c := range abi.Observer.Columns() {
		p := abitest.Policy{Kind: abi.Observer, Columns: []string{c.Name}}
		if _, err := host.NewObserver(loadOne(t, h, p.Build())); err != nil {
			t.Error(err)
		}
	}
}

// An observer of 16 rows sees 40 outcomes in three calls, each once.
func TestObserver(t *testing.T) {
	// Adds up ttft_ms into counter 0.
	code := `block local.get 0 i32.eqz br_if 0 loop i32.const 0 local.get 1 f32.load @0 i64.trunc_sat_f32_s call 1
		local.get 1 i32.const 4 i32.add local.tee 1 local.get 0 i32.const 2 i32.shl i32.lt_u br_if 0 end end
		i32.const 0 i64.const 1000000 call 1 i32.const 0`
	p := abitest.Policy{Kind: abi.Observer, Columns: []string{"ttft_ms"}, Rows: 16, Locals: "i32", Code: code}
	s := &services{}
	o, err := host.NewObserver(loadOne(t, newHost(t, s), p.Build()))
	if err != nil {
		t.Fatal(err)
	}
	b := &host.Batch{Outcomes: make([]dispatch.Observation, 40)}
	for i := range b.Outcomes {
		b.Outcomes[i].First = .002
	}
	if f := o.Observe(b); f != host.NoFault {
		t.Fatal(f)
	}
	if got := s.sums["0"]; got != 3_000_080 {
		t.Errorf("the counter is %s", strconv.FormatInt(got, 10))
	}
	if f := o.Observe(&host.Batch{}); f != host.NoFault || s.sums["0"] != 4_000_080 {
		t.Errorf("an empty batch: %s", f)
	}
}

// Whatever a guest returns is a verdict that may be carried out, or a fault.
func FuzzVerdict(f *testing.F) {
	for _, v := range []uint64{0, 2304, 429<<16 | 2, 503<<16 | 2, 404<<16 | 2, 9, math.MaxUint64} {
		f.Add(v)
	}
	p := abitest.Policy{Kind: abi.Admission, Code: "i32.const @request i64.load 0"} // the seed is what it returns
	h, err := host.New(f.Context(), &services{}, host.Options{})
	if err != nil {
		f.Fatal(err)
	}
	policy, err := h.Load(f.Context(), p.Build(), 4, nil)
	if err != nil {
		f.Fatal(err)
	}
	a, err := host.NewAdmission(policy, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := errors.Join(policy.Close(context.Background()), h.Close(context.Background())); err != nil {
			f.Error(err)
		}
	})
	f.Fuzz(func(t *testing.T, v uint64) {
		got, fault := a.Try(&admit.Ask{Seed: v})
		valid := v&0xff <= 3 && (v&0xff != 2 || v>>16&0xffff == 429 || v>>16&0xffff == 503)
		switch {
		case fault != host.NoFault && fault != host.FaultRefused, valid != (fault == host.NoFault):
			t.Errorf("%#x: %+v, %s", v, got, fault)
		case valid && (got.Priority != uint8(v>>8) || got.RetryAfter != time.Duration(v>>32)*time.Millisecond):
			t.Errorf("%#x: %+v", v, got)
		}
	})
}
