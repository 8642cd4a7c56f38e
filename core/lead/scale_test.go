package lead

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/core/traffic"
)

var (
	prefillPool = scale.Key{Model: "m", Role: fleet.RolePrefill}
	decodePool  = scale.Key{Model: "m", Role: fleet.RoleDecode}
)

func (f *fakePlanner) Plan() (*scale.Plan, uint64) { return f.machine.Plan() }

// script is a policy that does as it is told.
type script struct {
	mu    sync.Mutex
	want  func(w *scale.Window, want []scale.Want)
	ticks int
	seen  []scale.Sample // the decode pool's newest sample at each tick
	known []int          // samples of it of which something is known
}

func (*script) Name() string { return "script@1" }

func (s *script) Tick(w *scale.Window, want []scale.Want) {
	s.mu.Lock()
	s.ticks++
	for i := range w.Pools {
		if w.Pools[i].Key == decodePool {
			s.seen = append(s.seen, *w.Pools[i].Now())
			n := 0
			for _, x := range w.Pools[i].Samples {
				if !math.IsNaN(x.Ready) {
					n++
				}
			}
			s.known = append(s.known, n)
		}
	}
	do := s.want
	s.mu.Unlock()
	if do != nil {
		do(w, want)
	}
}

func (s *script) set(do func(w *scale.Window, want []scale.Want)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.want = do
}

// asked is how often it ticked, and last what it saw then.
func (s *script) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ticks
}

func (s *script) last() (newest scale.Sample, known int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[len(s.seen)-1], s.known[len(s.known)-1]
}

// decode wants n decode workers and has no opinion of the others.
func decode(n uint32) func(*scale.Window, []scale.Want) {
	return func(w *scale.Window, want []scale.Want) {
		for i := range want {
			want[i] = scale.Want{Keep: true}
			if w.Pools[i].Key == decodePool {
				want[i] = scale.Want{Replicas: n, Reason: "because"}
			}
		}
	}
}

// bench is a scaler over a fleet of one prefill and one decode worker.
type bench struct {
	*fakePlanner
	scaler   *Scaler
	policy   *script
	policies atomic.Int32
	traffic  *traffic.Book
	registry measure.Registry
}

func playScale(t *testing.T, c ScaleConfig, play func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{fakePlanner: &fakePlanner{machine: planner.New(), leading: true}, policy: &script{}, traffic: traffic.NewBook()}
		if _, err := b.Propose(t.Context(), planner.SetFeatureLevel{Level: planner.MaxFeatureLevel}); err != nil {
			t.Fatal(err)
		}
		b.register(t, "prefill-0", fleet.RolePrefill)
		b.register(t, "decode-0", fleet.RoleDecode)
		b.scaler = NewScaler(c, ScaleDuties{
			Planner: b, Policy: func() scale.Policy { b.policies.Add(1); return b.policy },
			Samples: func() *fleet.Samples { return nil }, Traffic: b.traffic, Clock: clock.Real{}, Registry: &b.registry,
		})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { b.scaler.Run(ctx) })
		play(b)
		cancel()
		wg.Wait()
	})
}

func (b *bench) register(t *testing.T, id fleet.WorkerID, role fleet.Role) {
	t.Helper()
	w := fleet.Worker{ID: id, Incarnation: "i", Role: role, Engine: "cpu", Models: []string{"m", "m-adapter"}, URL: "u", Transfer: "127.0.0.1:1"}
	if _, err := b.Propose(t.Context(), planner.RegisterWorker{Worker: w}); err != nil {
		t.Fatal(err)
	}
}

// ticks lets n intervals pass.
func (b *bench) ticks(n int) {
	pass(time.Duration(n) * b.scaler.cfg.Every)
}

// desired is the decode pool's size by the plan, -1 without one.
func (b *bench) desired() int {
	plan, _ := b.Plan()
	p, ok := plan.Find(decodePool)
	if !ok {
		return -1
	}
	return int(p.Desired)
}

func TestScalerCommitsWhatChanged(t *testing.T) {
	playScale(t, ScaleConfig{Limiter: scale.LimiterConfig{Hold: -1}}, func(b *bench) {
		b.policy.set(decode(1))
		b.ticks(1)
		if got := b.desired(); got != -1 {
			t.Errorf("a plan of %d after one look, of which no rates are known", got)
		}
		b.ticks(1)
		if got := b.desired(); got != 1 {
			t.Errorf("%d, want the fleet as it is", got)
		}
		_, first := b.Plan()
		b.ticks(5)
		if _, index := b.Plan(); index != first {
			t.Error("a plan was committed that changes nothing")
		}
		b.policy.set(decode(3))
		b.ticks(1)
		plan, _ := b.Plan()
		want := &scale.Plan{
			Budget: scale.MaxReplicas, Policy: "script@1",
			Pools: []scale.PoolPlan{{Key: prefillPool, Desired: 1}, {Key: decodePool, Desired: 3, Reason: "because"}},
		}
		if diff := cmp.Diff(want, plan, cmpopts.IgnoreFields(scale.Plan{}, "At")); diff != "" {
			t.Error(diff)
		}
		r := b.scaler.Report()
		if r == nil || len(r.Pools) != 2 || r.Pools[1].Want.Replicas != 3 || r.Pools[1].Now.Ready != 1 || r.Fault != "" {
			t.Errorf("%+v", r)
		}
		b.ticks(1)
		if r := b.scaler.Report(); r.Pools[1].Now.Pending != 2 || r.Pools[1].Now.Planned != 3 {
			t.Errorf("%+v", r.Pools[1].Now)
		}
		if got := b.registry.Counter(measure.ScalePlans, "committed").Value(); got != 2 {
			t.Errorf("%v plans were committed", got)
		}
	})
}

// A new leader has seen nothing: it has a new policy, an unknown past, and the plan.
func TestScalerBeginsAnewWithEachLeadership(t *testing.T) {
	playScale(t, ScaleConfig{Limiter: scale.LimiterConfig{Hold: 20 * time.Second}}, func(b *bench) {
		b.policy.set(decode(3))
		b.ticks(10)
		b.policy.set(decode(1))
		b.ticks(3) // 15 s of the hold
		b.set(false, nil)
		b.ticks(3)
		if b.scaler.Report() != nil {
			t.Error("a node that does not lead reports")
		}
		ticks := b.policy.asked()
		b.ticks(3)
		if b.policy.asked() != ticks {
			t.Error("the policy was asked where nobody leads")
		}
		b.set(true, nil)
		b.ticks(2)
		if _, known := b.policy.last(); b.policies.Load() != 2 || known != 2 {
			t.Errorf("%d policies, %d known samples", b.policies.Load(), known)
		}
		b.ticks(3)
		if got := b.desired(); got != 3 {
			t.Errorf("%d: the new leader holds anew", got)
		}
		b.ticks(1)
		if got := b.desired(); got != 2 {
			t.Errorf("%d, want one less after its hold", got)
		}
	})
}

func TestScalerKeepsThePlanOfAPolicyThatHangs(t *testing.T) {
	playScale(t, ScaleConfig{}, func(b *bench) {
		b.policy.set(decode(2))
		b.ticks(3)
		release := make(chan struct{})
		b.policy.set(func(w *scale.Window, want []scale.Want) {
			<-release
			decode(9)(w, want)
		})
		b.ticks(6)
		if got := b.desired(); got != 2 {
			t.Errorf("%d, want the plan of before", got)
		}
		if r := b.scaler.Report(); r == nil || r.Fault == "" || !r.Pools[0].Want.Keep {
			t.Errorf("%+v", r)
		}
		// Another leadership does not ask it a second time either.
		b.set(false, nil)
		b.ticks(2)
		b.set(true, nil)
		b.ticks(3)
		if n := b.policy.asked(); n != 3 {
			t.Errorf("asked %d times", n)
		}
		b.policy.set(decode(3))
		close(release)
		b.ticks(2)
		if got := b.desired(); got != 3 {
			t.Errorf("%d after it has returned", got)
		}
	})
}

func TestScalerLeavesAHeldPlanAlone(t *testing.T) {
	playScale(t, ScaleConfig{}, func(b *bench) {
		b.policy.set(decode(2))
		b.ticks(3)
		plan, _ := b.Plan()
		held := *plan
		held.Policy = scale.ByHand
		if _, err := b.Propose(t.Context(), planner.SetScalePlan{Plan: held}); err != nil {
			t.Fatal(err)
		}
		b.policy.set(decode(4))
		b.ticks(4)
		if got := b.desired(); got != 2 {
			t.Errorf("%d though it is held", got)
		}
		if r := b.scaler.Report(); r.Fault != "" || r.Pools[1].Want.Replicas != 4 {
			t.Errorf("a held plan is no fault, and the policy still wants: %+v", r)
		}
		held.Policy = scale.Released
		if _, err := b.Propose(t.Context(), planner.SetScalePlan{Plan: held}); err != nil {
			t.Fatal(err)
		}
		b.ticks(1)
		if got := b.desired(); got != 4 {
			t.Errorf("%d after it was released", got)
		}
	})
}

// A pool that was set to nothing by hand and that nobody serves in is over, unless the
// settings name it or let it sleep.
func TestScalerForgetsPoolsThatAreOver(t *testing.T) {
	phantom, named, sleeper := scale.Key{Model: "a", Role: fleet.RoleDecode}, scale.Key{Model: "b", Role: fleet.RoleDecode}, scale.Key{Model: "c", Role: fleet.RoleDecode}
	limits := func(key scale.Key) scale.Limits {
		if key == sleeper {
			return scale.Limits{}
		}
		return scale.Limits{Least: 1}
	}
	playScale(t, ScaleConfig{Limits: limits, Pools: []scale.Key{named}}, func(b *bench) {
		b.policy.set(decode(1))
		plan := scale.Plan{Policy: scale.Released, Pools: []scale.PoolPlan{{Key: phantom}, {Key: named}, {Key: sleeper}, {Key: decodePool}}}
		if _, err := b.Propose(t.Context(), planner.SetScalePlan{Plan: plan}); err != nil {
			t.Fatal(err)
		}
		b.ticks(3)
		got, _ := b.Plan()
		var keys []scale.Key
		for _, p := range got.Pools {
			keys = append(keys, p.Key)
		}
		if diff := cmp.Diff([]scale.Key{named, sleeper, prefillPool, decodePool}, keys); diff != "" {
			t.Error(diff)
		}
		if p, _ := got.Find(named); p.Desired != 1 {
			t.Errorf("%d of the pool that the settings name", p.Desired)
		}
	})
}

func TestScalerGoesOnAfterFailures(t *testing.T) {
	playScale(t, ScaleConfig{}, func(b *bench) {
		b.ticks(1)
		b.set(true, errors.New("no majority"))
		b.policy.set(decode(2))
		b.ticks(4)
		if r := b.scaler.Report(); r.Fault != "no majority" {
			t.Errorf("%q", r.Fault)
		}
		b.set(true, nil)
		b.ticks(1)
		if got := b.desired(); got != 2 {
			t.Errorf("%d", got)
		}
	})
}

// Zero traffic is known as such, and differs from no word of a gateway.
func TestZeroTrafficIsData(t *testing.T) {
	playScale(t, ScaleConfig{}, func(b *bench) {
		b.ticks(3)
		if s, _ := b.policy.last(); !math.IsNaN(s.Arrivals) || !math.IsNaN(s.Queued) {
			t.Errorf("%+v, of no gateway", s)
		}
		page := b.traffic.Open("g", 1)
		say := func(totals ...traffic.Totals) {
			if err := page.Update(time.Now(), totals); err != nil {
				t.Error(err)
			}
			b.ticks(1)
		}
		say()
		say()
		if s, _ := b.policy.last(); s.Arrivals != 0 || s.Queued != 0 || !math.IsNaN(s.HitRatio) || !math.IsNaN(s.FirstP95) {
			t.Errorf("%+v, of an idle gateway", s)
		}
		// An adapter's requests load the workers of its base.
		say(traffic.Totals{Model: "m-adapter", Arrivals: 50, Prompt: 1000, Cached: 250, Output: 100, Waiting: 3}, traffic.Totals{Model: "m", Arrivals: 50})
		if s, _ := b.policy.last(); s.Arrivals != 20 || s.PromptTokens != 200 || s.OutputTokens != 20 || s.HitRatio != .25 || s.Queued != 3 {
			t.Errorf("%+v", s)
		}
		page.Close()
		b.ticks(1)
		if s, _ := b.policy.last(); !math.IsNaN(s.Arrivals) {
			t.Errorf("%+v, of no gateway any more", s)
		}
	})
}

// What workers say is added up by pool, and what they do not say is unknown.
func TestSampleOfWorkers(t *testing.T) {
	worker := func(id fleet.WorkerID, role fleet.Role, draining bool) fleet.Worker {
		return fleet.Worker{
			ID: id, Epoch: fleet.Epoch(id[0]), Role: role, Models: []string{"m"}, Draining: draining,
			Capacity: fleet.Capacity{KVBlocks: 100, BlockTokens: 16, MaxRunning: 4},
		}
	}
	view := fleet.NewView(1, []fleet.Worker{
		worker("a", fleet.RoleDecode, false), worker("b", fleet.RoleDecode, false), worker("c", fleet.RoleDecode, true), worker("d", fleet.RolePrefill, false),
	})
	said := func(id fleet.WorkerID, running, waiting, free float64) fleet.Sample {
		return fleet.Sample{ID: id, Epoch: fleet.Epoch(id[0]), Stats: fleet.Stats{
			Running: fleet.Report(running), Waiting: fleet.Report(waiting), KVBlocksFree: fleet.Report(free),
			DecodeStepSeconds: fleet.Report(.02), PrefillTokensPerSecond: fleet.Report(math.NaN()),
		}}
	}
	c := &scene{
		view: view, said: fleet.NewSamples([]fleet.Sample{said("a", 4, 2, 20), said("b", 4, 0, math.Inf(1)), said("c", 9, 9, 0)}),
		plan: &scale.Plan{Pools: []scale.PoolPlan{{Key: decodePool, Desired: 3}}}, traffic: traffic.NewBook(),
		wanted: []scale.Key{{Model: "new", Role: fleet.RoleBoth}},
	}
	s := newSampler()
	got := s.sample(c)
	want := map[scale.Key]scale.Sample{}
	d := scale.Unknown()
	d.Planned, d.Ready, d.Pending, d.Draining = 3, 2, 1, 1
	d.Running, d.Waiting, d.KVUsage, d.KVTokens, d.DecodeRate = 8, 2, .8, 1600, 200
	p := scale.Unknown()
	p.Ready, p.Pending, p.Draining, p.KVTokens = 1, 0, 0, 1600
	n := scale.Unknown()
	n.Ready, n.Pending, n.Draining, n.Running, n.Waiting = 0, 0, 0, 0, 0
	want[decodePool], want[prefillPool], want[c.wanted[0]] = d, p, n
	if diff := cmp.Diff(want, got, cmpopts.EquateNaNs(), cmpopts.EquateApprox(0, 1e-9)); diff != "" {
		t.Error(diff)
	}
	// The best rate is not forgotten when the pool is idle.
	c.said = nil
	if got := s.sample(c)[decodePool].DecodeRate; got != 200 {
		t.Errorf("decode rate %v", got)
	}
}

// What waits at gateways counts for the pools that would help.
func TestQueuedFor(t *testing.T) {
	full, free, none := &poolSum{ready: 1, full: true}, &poolSum{ready: 1}, &poolSum{}
	for name, tt := range map[string]struct {
		prefill, decode         *poolSum
		wantPrefill, wantDecode float64
	}{
		"decode is full":   {free, full, 0, 7},
		"nobody prefills":  {none, free, 7, 0},
		"both are full":    {full, full, 7, 7},
		"nobody says full": {free, free, 7, 7},
	} {
		sums := map[scale.Key]*poolSum{prefillPool: tt.prefill, decodePool: tt.decode, {Model: "other", Role: fleet.RoleBoth}: full}
		p, d := queuedFor(prefillPool, tt.prefill, sums, 7), queuedFor(decodePool, tt.decode, sums, 7)
		if p != tt.wantPrefill || d != tt.wantDecode {
			t.Errorf("%s: %v and %v", name, p, d)
		}
	}
}
