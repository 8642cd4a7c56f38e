package dispatch

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/core/wire/edge"
)

// bouncer is an admission policy that answers by what a test says.
type bouncer struct {
	verdict func(*admit.Ask) admit.Verdict
	mu      sync.Mutex
	asked   []admit.Ask
}

func (*bouncer) Name() string { return "bouncer" }

func (b *bouncer) Admit(a *admit.Ask) admit.Verdict {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = append(b.asked, *a)
	return b.verdict(a)
}

// serveAs serves a request of a tenant.
func (y *yard) serveAs(ctx context.Context, tenant string, class admit.Class) Outcome {
	req, err := edge.Parse([]byte(shortStream), 0)
	if err != nil {
		y.t.Fatal(err)
	}
	life, err := y.d.Accept("test")
	if err != nil {
		return Outcome{Err: errs.As(err)}
	}
	defer life.Close()
	return life.Serve(ctx, &Request{Request: req, ID: "id-" + tenant, Path: "/p", Tenant: tenant, Class: class}, &sink{})
}

func TestVerdicts(t *testing.T) {
	tests := []struct {
		name    string
		verdict admit.Verdict
		kind    errs.Kind // Internal: it is served
		code    string
		body    string // what the engine is asked has it
	}{
		{"serve", admit.Verdict{}, errs.Internal, "", `"prompt":"hello"`},
		{"queue", admit.Verdict{Action: admit.Queue, Priority: 9}, errs.Internal, "", `"prompt":"hello"`},
		{"degrade", admit.Verdict{Action: admit.Degrade}, errs.Internal, "", `"max_tokens":256,`},
		{"reject", admit.Verdict{Action: admit.Reject, RetryAfter: 3 * time.Second, Reason: "slo_ttft"}, errs.Saturated, "slo_ttft", ""},
		{"reject without a word", admit.Verdict{Action: admit.Reject}, errs.Saturated, "admission", ""},
		{"no capacity", admit.Verdict{Action: admit.Reject, Unavailable: true}, errs.NoCapacity, "admission", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			y := newYard(t, Config{}, fleet.Worker{ID: "w"})
			b := &bouncer{verdict: func(*admit.Ask) admit.Verdict { return tt.verdict }}
			y.d.deps.Admission = b
			var sent string
			y.play = func(_ fleet.WorkerID, c *engine.Call) script {
				sent = string(c.Body)
				return good()
			}
			o := y.serveAs(t.Context(), "acme", admit.Critical)
			if tt.kind == errs.Internal {
				if o.Name != "ok" || !strings.Contains(sent, tt.body) {
					t.Errorf("%s: %v; sent %s", o.Name, o.Err, sent)
				}
			} else if o.Err == nil || o.Err.Kind != tt.kind || o.Err.Code != tt.code || o.Err.RetryAfter != tt.verdict.RetryAfter || sent != "" {
				t.Errorf("%+v; sent %q", o.Err, sent)
			}
			a := b.asked[0]
			if a.Tenant == 0 || a.Model == 0 || a.Seed == 0 || a.Class != admit.Critical || a.Prompt == 0 || a.Output != -1 || a.Workers != 1 ||
				a.TenantRunning != 0 || a.LeastService != 0 || !math.IsNaN(a.TenantTokens) || !math.IsNaN(a.KVUsage) {
				t.Errorf("asked %+v", a)
			}
			y.balanced()
		})
	}
}

// Service is what engines report, and is seen by the tenant's next request.
func TestServiceOfTenants(t *testing.T) {
	y := newYard(t, Config{}, fleet.Worker{ID: "w"})
	b := &bouncer{verdict: func(*admit.Ask) admit.Verdict { return admit.Verdict{} }}
	y.d.deps.Admission = b
	for range 2 {
		y.serveAs(t.Context(), "acme", admit.Standard)
	}
	if got := b.asked[1].TenantService; got != 10+2*3 {
		t.Errorf("service %v after 10 prompt tokens and 3 of output", got)
	}
}

// While all workers are busy the urgent come first, whoever came before.
func TestUrgentRequestsComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, waits(), fleet.Worker{ID: "w", Capacity: fleet.Capacity{MaxRunning: 1}})
		y.play = func(fleet.WorkerID, *engine.Call) script {
			s := good()
			s.body[1] = part{text: evHi, after: time.Second}
			return s
		}
		var mu sync.Mutex
		var order []admit.Class
		var wg sync.WaitGroup
		for _, class := range []admit.Class{admit.Standard, admit.Standard, admit.Standard, admit.Background, admit.Standard, admit.Critical, admit.Critical} {
			wg.Go(func() {
				if o := y.serveAs(t.Context(), "", class); o.Name != "ok" {
					t.Errorf("%v: %v", class, o.Err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, class)
			})
			synctest.Wait()
		}
		wg.Wait()
		if order[len(order)-1] != admit.Background {
			t.Errorf("served in the order %v", order)
		}
		for i, class := range order[:5] { // at most three had begun
			if class == admit.Critical {
				break
			}
			if i == 4 {
				t.Errorf("served in the order %v", order)
			}
		}
		y.balanced()
	})
}

// counted is a ledger without a limit on how it is asked.
type counted struct{ left unit.Tokens }

func (c *counted) Quota(tenant string) (admit.Quota, bool) {
	return admit.Quota{Limit: 1000}, tenant == "limited"
}

func (c *counted) Grant(_ context.Context, _ string, _ uint64, n unit.Tokens) (unit.Tokens, error) {
	granted := min(n, c.left)
	c.left -= granted
	return granted, nil
}

func TestQuotas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Minute - time.Duration(time.Now().UnixNano())%time.Minute) // a window begins
		y := newYard(t, Config{}, fleet.Worker{ID: "w"})
		y.d.deps.Quota = admit.NewSpender(admit.SpenderConfig{Share: .01}, &counted{left: 30}, clock.Real{})
		for i := range 2 {
			if o := y.serveAs(t.Context(), "limited", admit.Standard); o.Name != "ok" {
				t.Fatalf("%d: %v", i, o.Err)
			}
		}
		if left, _ := y.d.deps.Quota.Left("limited"); left < -20 || left > 30-2*13+10 {
			t.Errorf("%d left of what was granted, after 2 × 13 tokens", left)
		}
		var o Outcome
		for range 4 {
			o = y.serveAs(t.Context(), "limited", admit.Standard)
		}
		if o.Err == nil || o.Err.Kind != errs.Saturated || o.Err.Code != "tenant_quota" || o.Err.RetryAfter <= 0 {
			t.Errorf("over the quota: %v", o.Err)
		}
		if o := y.serveAs(t.Context(), "free", admit.Standard); o.Name != "ok" {
			t.Errorf("a tenant without a quota: %v", o.Err)
		}
		y.balanced()
	})
}

// reserving is a yard whose tenant "limited" has a large quota, of which all that is
// granted is there at once.
func reserving(t *testing.T) (y *yard, left func() unit.Tokens) {
	y = newYard(t, Config{}, fleet.Worker{ID: "w"})
	y.d.deps.Quota = admit.NewSpender(admit.SpenderConfig{Share: 1}, &counted{left: 1000}, clock.NewVirtual(time.Unix(0, 0)))
	r, _, _ := y.d.deps.Quota.Reserve(t.Context(), "limited", 1)
	r.Settle(0)
	return y, func() unit.Tokens { n, _ := y.d.deps.Quota.Left("limited"); return n }
}

// A request that gave the tenant nothing takes nothing of its quota.
func TestQuotaOfRequestsThatCameToNothing(t *testing.T) {
	const body = `{"model":"m","prompt":"hello","stream":true,"max_tokens":300}`
	for _, tt := range []struct {
		name   string
		script script
		want   unit.Tokens // taken; 0 is nothing
	}{
		{"refused by the engine", script{status: 400, plain: true, body: []part{{text: `{"error":{"message":"no"}}`}}}, 0},
		{"busy everywhere", script{status: 503, plain: true}, 0},
		{"accepted by nobody", script{err: errors.New("connection refused")}, 0},
		{"an error of the engine", script{status: 500, plain: true}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			y, left := reserving(t)
			y.play = func(fleet.WorkerID, *engine.Call) script { return tt.script }
			before := left()
			o := y.told(t, &Request{ID: "r", Path: "/p", Tenant: "limited"}, body)
			if o.Name == "ok" {
				t.Fatal("it was served")
			}
			if took := before - left(); took != tt.want {
				t.Errorf("%s: %d tokens were taken, want %d", o.Name, took, tt.want)
			}
			y.balanced()
		})
	}
}

// shared is a ledger of one window that several gateways spend.
type shared struct {
	mu    sync.Mutex
	limit unit.Tokens
	given unit.Tokens
}

func (s *shared) Quota(tenant string) (admit.Quota, bool) {
	return admit.Quota{Limit: s.limit}, tenant == "limited"
}

func (s *shared) Grant(_ context.Context, _ string, _ uint64, n unit.Tokens) (unit.Tokens, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(n, s.limit-s.given)
	s.given += n
	return n, nil
}

// However many requests come at once, and however long their answers are, a window gives
// away its limit and one request for each gateway.
func TestParallelRequestsStayWithinAQuota(t *testing.T) {
	const limit, output, many, gateways = 2000, 500, 60, 2
	body := fmt.Sprintf(`{"model":"m","stream":true,"prompt":"hello","max_tokens":%d}`, output)
	synctest.Test(t, func(t *testing.T) {
		ledger := &shared{limit: limit}
		var yards []*yard
		for range gateways {
			y := newYard(t, Config{}, fleet.Worker{ID: "w"})
			y.d.deps.Quota = admit.NewSpender(admit.SpenderConfig{}, ledger, clock.NewVirtual(time.Unix(0, 0)))
			y.d.model(y.d.deps.View(), "m").outputs.learn(5) // answers have been short so far
			y.play = func(fleet.WorkerID, *engine.Call) script {
				s := good()
				for i := range s.body {
					s.body[i].text = strings.Replace(s.body[i].text, `"completion_tokens":3`, fmt.Sprintf(`"completion_tokens":%d`, output), 1)
				}
				s.body[1] = part{text: evHi, after: time.Second}
				return s
			}
			yards = append(yards, y)
		}
		var wg sync.WaitGroup
		var spent, served, refused, odd atomic.Int64
		for i := range many {
			wg.Go(func() {
				o := yards[i%gateways].told(t, &Request{ID: "r", Path: "/p", Tenant: "limited"}, body)
				switch {
				case o.Name == "ok":
					served.Add(1)
					spent.Add(int64(o.Usage.Prompt + o.Usage.Output))
				case o.Err.Code == "tenant_quota":
					refused.Add(1)
				default:
					odd.Add(1)
				}
			})
		}
		wg.Wait()
		t.Logf("%d served with %d tokens, %d refused", served.Load(), spent.Load(), refused.Load())
		if n := spent.Load(); n > limit+gateways*(output+10) || n < limit || odd.Load() != 0 || refused.Load() == 0 {
			t.Errorf("%d of %d tokens were spent by %d requests; %d were refused, %d failed otherwise", n, limit, served.Load(), refused.Load(), odd.Load())
		}
	})
}

// A request that a quota could never let in is told so, in a sentence; one that names no
// limit is not judged by what is expected of it.
func TestQuotaIsTooSmall(t *testing.T) {
	y := newYard(t, Config{}, fleet.Worker{ID: "w"})
	y.d.deps.Quota = admit.NewSpender(admit.SpenderConfig{Share: 1}, &counted{left: 1000}, clock.NewVirtual(time.Unix(0, 0)))
	y.d.model(y.d.deps.View(), "m").outputs.learn(5000)
	o := y.told(t, &Request{ID: "r", Path: "/p", Tenant: "limited"}, `{"model":"m","prompt":"hello","max_tokens":1000}`)
	if o.Err == nil || o.Err.Kind != errs.Saturated || o.Err.Code != "tenant_quota_too_small" || !o.Err.NoRetry || !strings.Contains(o.Err.Client, "quota is 1000 a minute") {
		t.Errorf("%+v", o.Err)
	}
	if o := y.serveAs(t.Context(), "limited", admit.Standard); o.Name != "ok" {
		t.Errorf("without max_tokens: %v", o.Err)
	}
	y.balanced()
}

// Leaving before the answer is there is not free: an engine may have computed it.
func TestQuotaOfRequestsThatWereLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y, left := reserving(t)
		y.play = func(fleet.WorkerID, *engine.Call) script { return script{hang: true} }
		before := left()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if o := y.serveAs(ctx, "limited", admit.Standard); o.Name != "canceled" {
			t.Fatal(o.Name)
		}
		if left() >= before {
			t.Error("nothing was taken")
		}
	})
}

// What a client writes as its limit is not what is expected.
func TestOutputsAreBounded(t *testing.T) {
	for _, tt := range []struct{ context, most, want unit.Tokens }{
		{0, 1 << 30, unseenOutput}, {0, 100, 100}, {2048, 1 << 30, 2048}, {100_000, 1 << 30, 100_000}, {2048, 50, 50}, {2048, 0, -1},
	} {
		y := newYard(t, Config{}, fleet.Worker{ID: "w", Capacity: fleet.Capacity{MaxContext: tt.context}})
		b := &bouncer{verdict: func(*admit.Ask) admit.Verdict { return admit.Verdict{Action: admit.Reject} }}
		y.d.deps.Admission = b
		y.told(t, &Request{ID: "r", Path: "/p"}, fmt.Sprintf(`{"model":"m","prompt":"hello","max_tokens":%d}`, tt.most))
		if got := b.asked[0].Output; got != tt.want {
			t.Errorf("a context of %d, at most %d: %d expected, want %d", tt.context, tt.most, got, tt.want)
		}
	}
}

// What generates nothing is not told to generate less.
func TestWholeAnswersAreNotShortened(t *testing.T) {
	y := newYard(t, Config{}, fleet.Worker{ID: "w"})
	b := &bouncer{verdict: func(*admit.Ask) admit.Verdict { return admit.Verdict{Action: admit.Degrade} }}
	y.d.deps.Admission = b
	var sent string
	y.play = func(_ fleet.WorkerID, c *engine.Call) script {
		sent = string(c.Body)
		return script{status: 200, plain: true, body: []part{{text: `{"data":[]}`}}}
	}
	const body = `{"model":"m","input":"hello"}`
	if o := y.told(t, &Request{ID: "r", Path: "/v1/embeddings", Whole: true}, body); o.Name != "ok" || sent != body || b.asked[0].Output != 0 {
		t.Errorf("%s: %v; sent %s; %d expected", o.Name, o.Err, sent, b.asked[0].Output)
	}
}

// Where nothing is decided by tenants they are not counted, until they wait.
func TestIdleAdmissionCountsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, waits(), fleet.Worker{ID: "w", Capacity: fleet.Capacity{MaxRunning: 1}})
		y.d.deps.Admission = admit.Open{}
		y.play = func(fleet.WorkerID, *engine.Call) script {
			s := good()
			s.body[1] = part{text: evHi, after: time.Second}
			return s
		}
		y.serveAs(t.Context(), "acme", admit.Standard)
		service := func() float64 {
			v := y.d.tenants.Visit((&Life{req: &Request{Tenant: "acme"}}).tenant())
			defer v.End()
			return v.Standing().Service
		}
		if got := service(); got != 0 {
			t.Errorf("service %v was counted", got)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { y.serveAs(t.Context(), "acme", admit.Standard) })
		}
		wg.Wait()
		if service() == 0 {
			t.Error("those who waited were not counted")
		}
		y.balanced()
	})
}
