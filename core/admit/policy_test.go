package admit

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/native/nativetest"
)

// ask is one of which nothing is known but what set says.
func ask(set func(*Ask)) *Ask {
	nan := math.NaN()
	a := &Ask{
		Now: time.UnixMilli(1_000_000), Output: -1, Class: Standard, Workers: 2,
		TenantTokens: nan, TenantService: nan, LeastService: nan, KVUsage: nan,
		First: nan, WantedFirst: nan, Between: nan, WantedBetween: nan, Deadline: nan,
	}
	set(a)
	return a
}

// Every expectation is computed by hand from the formula of the type.
func TestPolicies(t *testing.T) {
	tests := []struct {
		name   string
		policy Policy
		ask    func(*Ask)
		want   Verdict
	}{
		{"open", Open{}, func(a *Ask) { a.Class = Critical }, Verdict{Priority: 192}},
		{"open, background", Open{}, func(a *Ask) { a.Class = Background }, Verdict{}},

		{"vtc: the least served", VTC{}, func(a *Ask) { a.TenantService, a.LeastService = 500, 500 }, Verdict{Priority: 255}},
		{"vtc: half the lead ahead", VTC{Lead: 1000}, func(a *Ask) { a.TenantService, a.LeastService = 1500, 1000 }, Verdict{Priority: 128}},
		{"vtc: far ahead", VTC{}, func(a *Ask) { a.TenantService, a.LeastService = 1e9, 0 }, Verdict{}},
		{"vtc: nothing known", VTC{}, func(*Ask) {}, Verdict{Priority: 255}},

		{"early: in time", EarlyRejection{}, func(a *Ask) { a.First, a.WantedFirst = 900, 1000 }, Verdict{Priority: 128}},
		{"early: 1,500 of 1,000 ms", EarlyRejection{}, func(a *Ask) { a.First, a.WantedFirst = 1500, 1000 }, Verdict{Action: Reject, RetryAfter: 500 * time.Millisecond, Reason: "slo_ttft"}},
		{"early: the client is gone by then", EarlyRejection{}, func(a *Ask) { a.First, a.Deadline = 1500, 1000 }, Verdict{Action: Reject, RetryAfter: 500 * time.Millisecond, Reason: "deadline"}},
		{"early: tokens too far apart", EarlyRejection{}, func(a *Ask) { a.Between, a.WantedBetween = 60, 50 }, Verdict{Action: Reject, RetryAfter: 10 * time.Millisecond, Reason: "slo_itl"}},
		{"early: nothing predicted", EarlyRejection{}, func(a *Ask) { a.WantedFirst = 1 }, Verdict{Priority: 128}},
		{"early: an endless prediction", EarlyRejection{}, func(a *Ask) { a.First, a.WantedFirst = math.Inf(1), 1000 }, Verdict{Action: Reject, RetryAfter: time.Minute, Reason: "slo_ttft"}},

		{"probabilistic: batch is shed when saturated", Probabilistic{}, func(a *Ask) { a.Class, a.Waiting = Batch, 10 }, Verdict{Action: Reject, RetryAfter: time.Second, Reason: "shed"}},
		{"probabilistic: standard never", Probabilistic{}, func(a *Ask) { a.Waiting = 1000 }, Verdict{Priority: 128}},
		{"probabilistic: no workers", Probabilistic{}, func(a *Ask) { a.Class, a.Workers = Batch, 0 }, Verdict{Action: Reject, RetryAfter: time.Second, Reason: "shed"}},
		{"probabilistic: idle", Probabilistic{}, func(a *Ask) { a.Class, a.KVUsage = Batch, 0 }, Verdict{Priority: 64}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.policy.Admit(ask(tt.ask)); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// 300·0.2^5 is 0.096, 300·0.3^5 is 0.729: shares of a thousand draws are near.
func TestProbabilisticShares(t *testing.T) {
	for _, tt := range []struct{ kv, want float64 }{{.8 * .2, .096}, {.8 * .3, .729}, {.8 * .34, 1}} {
		shed := 0
		for seed := range uint64(2000) {
			v := Probabilistic{}.Admit(ask(func(a *Ask) { a.Class, a.KVUsage, a.Seed = Batch, tt.kv, seed }))
			if v.Action == Reject {
				shed++
			}
		}
		if got := float64(shed) / 2000; math.Abs(got-tt.want) > .04 {
			t.Errorf("KV usage %.2f: %.3f are shed, want about %.3f", tt.kv, got, tt.want)
		}
	}
}

func TestTokenBucket(t *testing.T) {
	p := NewTokenBucket(100, 1000)
	begin := time.UnixMilli(1_000_000)
	steps := []struct {
		after          time.Duration
		tenant         uint64
		prompt, output int64
		wait           time.Duration // 0 is let in
	}{
		{0, 1, 600, 300, 0},                              // 100 left
		{0, 1, 100, 100, time.Second},                    // 100 are missing
		{0, 2, 100, 100, 0},                              // another tenant
		{time.Second, 1, 100, 100, 0},                    // nothing left
		{time.Second, 1, 0, -1, 2560 * time.Millisecond}, // 256 are expected
		{11 * time.Second, 1, 5000, 0, 0},                // more than the burst: from a full bucket, owing 4,000
		{11 * time.Second, 1, 1, 0, 40010 * time.Millisecond},
		{10 * time.Second, 1, 1, 0, 40010 * time.Millisecond}, // a clock that goes back gives nothing
		{11 * time.Second, 1, 1, 0, 40010 * time.Millisecond}, // nor does it when it goes on
	}
	for i, s := range steps {
		v := p.Admit(ask(func(a *Ask) {
			a.Now, a.Tenant, a.Prompt, a.Output = begin.Add(s.after), s.tenant, unitTokens(s.prompt), unitTokens(s.output)
		}))
		if (v.Action == Reject) != (s.wait > 0) || v.RetryAfter != s.wait {
			t.Errorf("step %d: %+v, want a wait of %v", i, v, s.wait)
		}
	}
}

func TestTokenBucketsAreBounded(t *testing.T) {
	p := NewTokenBucket(1, 1000)
	for tenant := range uint64(3 * maxTenants) {
		p.Admit(ask(func(a *Ask) { a.Tenant, a.Prompt, a.Output = tenant, 500, 0 }))
	}
	if len(p.buckets) > maxTenants {
		t.Errorf("%d buckets", len(p.buckets))
	}
}

func TestPolicyNamed(t *testing.T) {
	for _, p := range Policies() {
		if got, err := PolicyNamed(p.Name()); err != nil || got.Name() != p.Name() {
			t.Errorf("%s: %v", p.Name(), err)
		}
	}
	if _, err := PolicyNamed("luck"); err == nil {
		t.Error("an unknown policy was found")
	}
}

func TestParseClass(t *testing.T) {
	for c := Background; c <= Critical; c++ {
		if got, ok := ParseClass(c.String()); !ok || got != c {
			t.Errorf("%v: %v, %v", c, got, ok)
		}
	}
	if c, ok := ParseClass("urgent!"); ok || c != Standard {
		t.Errorf("got %v, %v", c, ok)
	}
}

// A parameter's stated default is what the policy does without it, and each
// parameter does something.
func TestTune(t *testing.T) {
	// verdicts are what a policy says of a run of requests.
	verdicts := func(p Policy) string {
		var out []Verdict
		for n := range 200 {
			out = append(out, p.Admit(ask(func(a *Ask) {
				a.Now = a.Now.Add(time.Duration(n) * 10 * time.Millisecond)
				a.Class, a.Seed, a.Prompt, a.Output = Class(n%3), uint64(n), 3000, 2000
				a.Waiting, a.KVUsage, a.TenantService, a.LeastService = n%4, .24, float64(n)*500, 0
			})))
		}
		return fmt.Sprint(out)
	}
	nativetest.Tune(t, Policies(), PolicyWith, verdicts)
	if p, err := PolicyNamed("token-bucket(burst=0)"); err == nil {
		t.Errorf("%+v", p)
	}
}
