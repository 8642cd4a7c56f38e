package live_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/policies/live"
)

func TestBindingDecides(t *testing.T) {
	c := newCluster()
	r := newRig(t, c, live.Config{})
	if d := r.decide(route.Query{}); d.Policy != "round-robin" || d.Index != 0 {
		t.Errorf("with nothing bound: %+v", d.Mandate)
	}
	one := c.put(t, "mine", "1", rollout.Router, wasmRouter("mine", "1", each(first)))
	index := c.promote(t, only("mine", one))
	r.await(index)
	d := r.decide(route.Query{})
	if d.Policy != "mine@1" || d.Index != index || d.Digest != one.String() || d.Server().ID != "w0" || d.Fallback != "" {
		t.Errorf("%s by %+v, fallback %q", d.Server().ID, d.Mandate, d.Fallback)
	}
	two := c.put(t, "mine", "2", rollout.Router, wasmRouter("mine", "2", each(last)))
	r.await(c.promote(t, only("mine", two)))
	if d := r.decide(route.Query{}); d.Policy != "mine@2" || d.Server().ID != "w3" {
		t.Errorf("%s by %+v", d.Server().ID, d.Mandate)
	}
	r.await(c.change(t, rollout.Change{Verb: rollout.VerbRollback}))
	if d := r.decide(route.Query{}); d.Policy != "mine@1" || d.Server().ID != "w0" {
		t.Errorf("%s by %+v", d.Server().ID, d.Mandate)
	}
	r.await(c.change(t, rollout.Change{Verb: rollout.VerbClear}))
	if d := r.decide(route.Query{}); d.Policy != "round-robin" {
		t.Errorf("after clearing: %+v", d.Mandate)
	}
	if n := r.count(measure.PolicyDecisions, "router", "mine@1", "active"); n != 2 {
		t.Errorf("%v decisions by mine@1 counted", n)
	}
	if s := r.node.Status(); len(s.Versions) != 2 || !s.Versions[0].Prepared {
		t.Errorf("%+v", s)
	}
}

func TestModelsHaveTheirOwn(t *testing.T) {
	c := newCluster()
	r := newRig(t, c, live.Config{})
	d := c.put(t, "mine", "1", rollout.Router, wasmRouter("mine", "1", each(last)))
	c.promote(t, rollout.NativeStage("least-request"))
	r.await(c.change(t, rollout.Change{Verb: rollout.VerbPromote, Model: "other", Stage: only("mine", d)}))
	if d := r.decide(route.Query{}); d.Policy != "least-request" {
		t.Errorf("%+v", d.Mandate)
	}
	choice := r.node.Choose(&route.Query{Model: "other"})
	if choice == nil || choice.Mandate.Policy != "mine@1" {
		t.Fatalf("%+v", choice)
	}
	r.node.Done(choice)
}

func TestParamsAreApplied(t *testing.T) {
	c := newCluster()
	r := newRig(t, c, live.Config{})
	d := c.put(t, "mine", "1", rollout.Router, wasmRouter("mine", "1", each(turned)))
	r.await(c.promote(t, only("mine", d)))
	if d := r.decide(route.Query{}); d.Server().ID != "w3" {
		t.Errorf("by default: %s", d.Server().ID)
	}
	index := c.promote(t, only("mine", d, rollout.Param{Name: "turn", Value: -1}))
	r.await(index)
	if d := r.decide(route.Query{}); d.Server().ID != "w0" || d.Index != index {
		t.Errorf("turned: %s", d.Server().ID)
	}
	c.promote(t, only("mine", d, rollout.Param{Name: "trun", Value: 2}))
	eventually(t, "the fault is named", func() bool { return strings.Contains(r.node.News(), `no "trun"; it has turn`) })
	if d := r.decide(route.Query{}); d.Server().ID != "w0" || d.Index != index {
		t.Errorf("what is not ready changed a decision: %s, %d", d.Server().ID, d.Index)
	}
}

// A node whose module does not come keeps what it had, and says so.
func TestUnreadyNodeKeepsTheOld(t *testing.T) {
	c := newCluster()
	r := newRig(t, c, live.Config{})
	one := c.put(t, "mine", "1", rollout.Router, wasmRouter("mine", "1", each(first)))
	before := c.promote(t, only("mine", one))
	r.await(before)
	wasm := wasmRouter("mine", "2", each(last))
	two := c.put(t, "mine", "2", rollout.Router, wasm)
	c.mu.Lock()
	delete(c.blobs, two)
	c.mu.Unlock()
	after := c.promote(t, only("mine", two))
	eventually(t, "it says so", func() bool { return strings.Contains(r.node.News(), "mine@2: its bytes cannot be had yet") })
	if d := r.decide(route.Query{}); d.Index != before || d.Policy != "mine@1" {
		t.Errorf("%+v", d.Mandate)
	}
	if err := r.node.Ready(); err != nil {
		t.Errorf("a node that serves well: %v", err)
	}
	c.mu.Lock()
	c.blobs[two] = wasm
	c.mu.Unlock()
	r.await(after)
	if d := r.decide(route.Query{}); d.Index != after || d.Policy != "mine@2" {
		t.Errorf("%+v", d.Mandate)
	}
}

func TestSeveralAreAddedUp(t *testing.T) {
	c := newCluster()
	r := newRig(t, c, live.Config{})
	a := c.put(t, "a", "1", rollout.Router, wasmRouter("a", "1", each(first)))
	b := c.put(t, "b", "1", rollout.Router, wasmRouter("b", "1", each(last)))
	stage := rollout.Stage{Parts: []rollout.Part{rollout.NewPart("a", a, 1), rollout.NewPart("b", b, 3), rollout.NewPart("least-request", rollout.Digest{}, 1)}}
	r.await(c.promote(t, stage))
	d := r.decide(route.Query{})
	if d.Server().ID != "w3" || d.Policy != "a@1=1,b@1=3,least-request=1" || d.Digest != a.Short()+"+"+b.Short() {
		t.Errorf("%s by %+v", d.Server().ID, d.Mandate)
	}
	var e route.Explanation
	r.router.Explain(&d, &e)
	if strings.Join(e.Policies, " ") != "a@1 b@1 least-request" || e.Serving[0].Parts[1] != -3 || e.Serving[0].Cost != 1 {
		t.Errorf("%v %+v", e.Policies, e.Serving)
	}
}

// Faults are answered in the same call, and five of them end the version: on this
// node at once, for all by a proposal.
func TestFaultsQuarantine(t *testing.T) {
	for name, code := range map[string]string{"fuel": endless, "trap": traps, "scores": each("f32.const 0 f32.const 0 f32.div")} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			c.refuse = errors.New("no leader")
			r := newRig(t, c, live.Config{})
			good := c.put(t, "mine", "1", rollout.Router, wasmRouter("mine", "1", each(last)))
			r.await(c.promote(t, only("mine", good)))
			bad := c.put(t, "mine", "2", rollout.Router, wasmRouter("mine", "2", code))
			index := c.promote(t, only("mine", bad))
			r.await(index)
			faults := 0
			eventually(t, "the last good one decides", func() bool {
				d := r.decide(route.Query{})
				switch {
				case d.Policy == "mine@1":
					if d.Server().ID != "w3" || d.Fallback != "" || d.Index != 0 {
						t.Errorf("%+v, fallback %q", d.Mandate, d.Fallback)
					}
					return true
				case d.Policy != "mine@2" || d.Index != index || d.Fallback == "":
					t.Errorf("%+v, fallback %q", d.Mandate, d.Fallback)
				case d.Fallback == name:
					faults++
				}
				return false
			})
			if faults != 5 {
				t.Errorf("%d faults of kind %s", faults, name)
			}
			eventually(t, "it is proposed, and again", func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.refuse = nil
				return len(c.quarantines) >= 2 && strings.HasSuffix(c.quarantines[0], name)
			})
			eventually(t, "the cluster agrees", func() bool {
				d := r.decide(route.Query{})
				return d.Policy == "mine@1" && d.Index > index
			})
			if s := r.node.News(); s != "" {
				t.Error(s)
			}
		})
	}
}

func TestCanaryShare(t *testing.T) {
	c := newCluster()
	r := newRig(t, c, live.Config{})
	one := c.put(t, "mine", "1", rollout.Router, wasmRouter("mine", "1", each(first)))
	two := c.put(t, "mine", "2", rollout.Router, wasmRouter("mine", "2", each(last)))
	c.promote(t, only("mine", one))
	const sessions = 4000
	in := func(share float64) map[uint64]bool {
		r.await(c.change(t, rollout.Change{Verb: rollout.VerbCanary, Stage: only("mine", two), Share: share}))
		out := map[uint64]bool{}
		for s := range uint64(sessions) {
			d := r.decide(route.Query{Session: s + 1})
			if again := r.decide(route.Query{Session: s + 1}); again.Policy != d.Policy || d.Canary != (d.Policy == "mine@2") {
				t.Fatalf("session %d: %+v, then %+v", s, d.Mandate, again.Mandate)
			}
			if d.Canary {
				out[s] = true
			}
		}
		return out
	}
	few, more := in(.05), in(.2)
	if n := len(few); n < 140 || n > 260 {
		t.Errorf("%d of %d sessions at 5 %%", n, sessions)
	}
	if n := len(more); n < 680 || n > 920 {
		t.Errorf("%d of %d sessions at 20 %%", n, sessions)
	}
	for s := range few {
		if !more[s] {
			t.Errorf("session %d left the canary when it grew", s)
		}
	}
	drawn := 0
	for range sessions {
		if r.decide(route.Query{}).Canary {
			drawn++
		}
	}
	if drawn < 680 || drawn > 920 {
		t.Errorf("%d of %d requests without a session at 20 %%", drawn, sessions)
	}
}

func TestShadowChangesNothing(t *testing.T) {
	c := newCluster()
	r := newRig(t, c, live.Config{ShadowShare: 1})
	one := c.put(t, "mine", "1", rollout.Router, wasmRouter("mine", "1", each(first)))
	two := c.put(t, "mine", "2", rollout.Router, wasmRouter("mine", "2", each(last)))
	bad := c.put(t, "bad", "1", rollout.Router, wasmRouter("bad", "1", traps))
	c.promote(t, only("mine", one))
	for _, shadow := range []rollout.Stage{only("mine", one), only("mine", two), only("bad", bad)} {
		r.await(c.change(t, rollout.Change{Verb: rollout.VerbShadow, Stage: shadow}))
		for range 20 {
			if d := r.decide(route.Query{}); d.Policy != "mine@1" || d.Server().ID != "w0" || d.Fallback != "" {
				t.Fatalf("%+v, fallback %q", d.Mandate, d.Fallback)
			}
		}
	}
	if n := r.count(measure.PolicyShadow, "mine@1", "agree"); n != 20 {
		t.Errorf("%v agree", n)
	}
	if n := r.count(measure.PolicyShadow, "mine@2", "disagree"); n != 20 {
		t.Errorf("%v disagree", n)
	}
	eventually(t, "a bad shadow is quarantined", func() bool {
		r.decide(route.Query{})
		v, _ := c.Rollout().Version(bad)
		return v.Quarantined > 0
	})
}

// The first step with a new policy is a shadow while nothing is active: the configured
// policy decides, and the shadow sees it.
func TestShadowBesideTheConfiguredPolicy(t *testing.T) {
	c := newCluster()
	r := newRig(t, c, live.Config{ShadowShare: 1})
	v := c.put(t, "mine", "1", rollout.Router, wasmRouter("mine", "1", each(last)))
	r.await(c.change(t, rollout.Change{Verb: rollout.VerbShadow, Stage: only("mine", v)}))
	for range 20 {
		if d := r.decide(route.Query{}); d.Index != 0 || strings.HasPrefix(d.Policy, "mine") || d.Fallback != "" {
			t.Fatalf("%+v, fallback %q", d.Mandate, d.Fallback)
		}
	}
	if n := r.count(measure.PolicyShadow, "mine@1", "agree") + r.count(measure.PolicyShadow, "mine@1", "disagree"); n != 20 {
		t.Errorf("%v compared", n)
	}
}

// A version that is deleted elsewhere while this node still decides by it leaves no
// metrics once its successor is ready.
func TestMetricsOfDeletedVersionsEnd(t *testing.T) {
	c := newCluster()
	hold := make(chan struct{})
	calls := atomic.Int64{}
	r := newRigWith(t, c, live.Config{}, func(ctx context.Context, _ []byte) error {
		if calls.Add(1) > 2 {
			select {
			case <-hold:
			case <-ctx.Done():
			}
		}
		return nil
	})
	one := c.put(t, "mine", "1", rollout.Router, wasmRouter("mine", "1", each(first)))
	other := c.put(t, "other", "1", rollout.Router, wasmRouter("other", "1", each(last)))
	both := rollout.Stage{Parts: []rollout.Part{rollout.NewPart("mine", one, 1), rollout.NewPart("other", other, 2)}}
	r.await(c.promote(t, only("mine", one)))
	r.decide(route.Query{})
	r.await(c.promote(t, both))
	r.decide(route.Query{})
	two := c.put(t, "mine", "2", rollout.Router, wasmRouter("mine", "2", each(last)))
	index := c.promote(t, only("mine", two))
	c.must(t, func(table *rollout.Table, i uint64) (*rollout.Table, error) { return table.Delete(one, i) })
	c.must(t, func(table *rollout.Table, i uint64) (*rollout.Table, error) { return table.Delete(other, i) })
	eventually(t, "the deletion is seen", func() bool { return len(r.node.Status().Versions) == 1 })
	if d := r.decide(route.Query{}); !strings.Contains(d.Policy, "mine@1") {
		t.Errorf("%+v decides, and its successor is not ready", d.Mandate)
	}
	close(hold)
	r.await(index)
	r.decide(route.Query{})
	for _, d := range []measure.Desc{measure.PolicyDecisions, measure.PolicyFaults, measure.PolicyLines, measure.PolicyBound} {
		eventually(t, d.Name+" is of the successor alone", func() bool {
			for _, s := range r.registry.Read(d).Series {
				if !slices.Contains(s.Labels, "mine@2") {
					return false
				}
			}
			return true
		})
	}
}

func TestShadowsTimeIsBounded(t *testing.T) {
	c := newCluster()
	r := newRig(t, c, live.Config{ShadowShare: 1e-6})
	two := c.put(t, "mine", "2", rollout.Router, wasmRouter("mine", "2", each(last)))
	c.promote(t, rollout.NativeStage("round-robin"))
	r.await(c.change(t, rollout.Change{Verb: rollout.VerbShadow, Stage: only("mine", two)}))
	for range 200 {
		r.decide(route.Query{})
	}
	scored := r.count(measure.PolicyShadow, "mine@2", "agree") + r.count(measure.PolicyShadow, "mine@2", "disagree")
	if skipped := r.count(measure.PolicyShadow, "mine@2", "skipped"); scored < 1 || scored > 20 || scored+skipped != 200 {
		t.Errorf("%v scored, %v skipped", scored, skipped)
	}
}

// Bindings move while decisions are made: each is the bound one's of its index, and
// what was bound before is closed.
func TestSwapUnderLoad(t *testing.T) {
	c := newCluster()
	r := newRig(t, c, live.Config{})
	one := c.put(t, "mine", "1", rollout.Router, wasmRouter("mine", "1", each(first)))
	two := c.put(t, "mine", "2", rollout.Router, wasmRouter("mine", "2", each(last)))
	r.await(c.promote(t, only("mine", one)))
	stop := make(chan struct{})
	var decided atomic.Int64
	var deciding sync.WaitGroup
	for range 3 { // as three gateways would
		router := r.newRouter()
		deciding.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				q := route.Query{Model: "m", Now: time.Now()}
				d, err := router.Decide(&q, r.table.Columns(r.view), nil, route.Caches{})
				if err != nil {
					t.Error(err)
					return
				}
				if err := c.judge(&d); err != nil {
					t.Error(err)
					return
				}
				decided.Add(1)
			}
		})
	}
	rounds := 50
	if testing.Short() {
		rounds = 5
	}
	for range rounds {
		r.await(c.promote(t, only("mine", two)))
		r.await(c.change(t, rollout.Change{Verb: rollout.VerbRollback}))
	}
	close(stop)
	deciding.Wait()
	if decided.Load() < int64(rounds) {
		t.Errorf("%d decisions", decided.Load())
	}
	eventually(t, "only the bound one and the one before are left", func() bool {
		return r.registry.Gauge(measure.PolicyInstances, "live").Value() <= 4
	})
}

// judge holds a decision against what was bound at its index.
func (c *cluster) judge(d *route.Decision) error {
	c.mu.Lock()
	bound := c.history[d.Index]
	c.mu.Unlock()
	want := map[string]fleet.WorkerID{"mine@1": "w0", "mine@2": "w3"}[d.Policy]
	switch {
	case d.Digest != bound:
		return fmt.Errorf("at index %d %s decided, where %s was bound", d.Index, d.Digest, bound)
	case d.Fallback == "" && d.Server().ID != want, d.Fallback != "" && d.Fallback != "busy":
		return fmt.Errorf("%s chose %s, fallback %q", d.Policy, d.Server().ID, d.Fallback)
	}
	return nil
}

// A thousand reloads leave nothing behind.
func TestReloadsLeaveNothing(t *testing.T) {
	c := newCluster()
	r := newRig(t, c, live.Config{})
	d := c.put(t, "mine", "1", rollout.Router, wasmRouter("mine", "1", each(turned)))
	reloads := 1000
	if testing.Short() {
		reloads = 50
	}
	for i := range reloads {
		r.await(c.promote(t, only("mine", d, rollout.Param{Name: "turn", Value: float64(i + 1)})))
		if d := r.decide(route.Query{}); d.Server().ID != "w3" {
			t.Fatalf("%s", d.Server().ID)
		}
	}
	eventually(t, "two versions' instances are left", func() bool {
		return r.registry.Gauge(measure.PolicyInstances, "live").Value() == 4
	})
}

func TestServices(t *testing.T) {
	c := newCluster()
	r := newRig(t, c, live.Config{})
	// A call logs "seen", counts 1, observes 1.5, and adds 3 to a number of the node's;
	// the score of each is that number, so that it shows.
	code := `i32.const 1 i32.const 64 i32.const 4 call 0 i32.const 0 i64.const 1 call 1 i32.const 0 f64.const 1.5 call 2
		i32.const 0 i32.const 64 i32.const 4 i64.const 3 call 3 drop ` + each(last)
	d := c.put(t, "my-own", "1", rollout.Router, wasmRouter("my-own", "1", code))
	r.await(c.promote(t, only("my-own", d)))
	for range 60 {
		if d := r.decide(route.Query{}); d.Fallback != "" {
			t.Fatal(d.Fallback)
		}
	}
	if n := r.count(measure.PolicyCounter, "my-own", "calls", "deciding"); n != 60 {
		t.Errorf("%v calls counted", n)
	}
	logged, dropped := r.count(measure.PolicyLines, "my-own@1", "logged"), r.count(measure.PolicyLines, "my-own@1", "dropped")
	if logged < 50 || logged > 59 || logged+dropped != 60 {
		t.Errorf("%v lines logged, %v dropped", logged, dropped)
	}
	if s := r.log.String(); !strings.Contains(s, "policy=my-own@1 line=seen") {
		t.Errorf("log %q", s)
	}
	h := measure.PolicyHistogram("my_own_depth", nil)
	for _, f := range r.registry.Snapshot() {
		if f.Desc.Name == h.Name && (len(f.Series) != 1 || f.Series[0].Counts[1] != 60) {
			t.Errorf("%+v", f)
		}
	}
}

// A shadow decides nothing, so that nothing counts what it does as if it had: neither
// metrics nor the state of the version that decides, though they are one version.
func TestServicesOfAShadow(t *testing.T) {
	c := newCluster()
	r := newRig(t, c, live.Config{ShadowShare: 1})
	const code = `i32.const 1 i32.const 64 i32.const 4 call 0 i32.const 0 i64.const 1 call 1 i32.const 0 f64.const 1.5 call 2
		i32.const 0 i32.const 64 i32.const 4 i64.const 3 call 3 drop `
	d := c.put(t, "my-own", "1", rollout.Router, wasmRouter("my-own", "1", code+each(last)))
	r.await(c.change(t, rollout.Change{Kind: rollout.Router, Verb: rollout.VerbShadow, Stage: only("my-own", d)}))
	counted := func(stage string) float64 { return r.count(measure.PolicyCounter, "my-own", "calls", stage) }
	eventually(t, "the shadow is asked", func() bool {
		r.decide(route.Query{})
		return counted("shadow") > 0
	})
	if n := counted("deciding"); n != 0 {
		t.Errorf("%v calls counted of what decides nothing", n)
	}
	if s := r.log.String(); !strings.Contains(s, "policy=my-own@1 stage=shadow line=seen") {
		t.Errorf("log %q", s)
	}
	r.await(c.promote(t, only("my-own", d)))
	before := counted("shadow")
	for range 3 {
		if d := r.decide(route.Query{}); d.Fallback != "" || d.Policy != "my-own@1" {
			t.Fatalf("%+v", d.Mandate)
		}
	}
	if counted("deciding") != 3 || counted("shadow") != before {
		t.Errorf("%v calls counted of what decides, %v more of what was a shadow", counted("deciding"), counted("shadow")-before)
	}
}

func TestObservers(t *testing.T) {
	c := newCluster()
	r := newRig(t, c, live.Config{})
	r.node.Observe(dispatch.Observation{}) // nobody listens
	d := c.put(t, "eyes", "1", rollout.Observer, wasmObserver("eyes", "1"))
	r.await(c.change(t, rollout.Change{Kind: rollout.Observer, Verb: rollout.VerbPromote, Stage: only("eyes", d)}))
	observe := func(n int) {
		before := r.count(measure.PolicyOutcomes, "observed")
		for range n {
			r.node.Observe(dispatch.Observation{Outcome: "ok", Prompt: 5})
		}
		eventually(t, "they are observed", func() bool { return r.count(measure.PolicyOutcomes, "observed") == before+float64(n) })
	}
	observe(10)
	if s := c.Rollout().State("eyes"); s.Len() != 0 {
		t.Error("a follower has written to the cluster's state")
	}
	c.mu.Lock()
	c.leading = true
	c.mu.Unlock()
	observe(700)
	eventually(t, "the cluster's state has the sum", func() bool {
		value, _ := c.Rollout().State("eyes").Get("seen")
		return rollout.Number(value) == 700
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writes > 4 {
		t.Errorf("%d batches", c.writes)
	}
}

func TestAlone(t *testing.T) {
	wasm := wasmRouter("mine", "7", each(last))
	alone, err := live.Alone([]live.File{
		{Module: wasm, Policy: "mine", Release: "7", Kind: rollout.Router, Weight: 2},
		{Policy: "least-request", Kind: rollout.Router, Weight: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster()
	c.table = alone.Rollout()
	c.blobs[rollout.DigestOf(wasm)] = wasm
	r := newRig(t, c, live.Config{})
	r.await(0)
	if d := r.decide(route.Query{}); d.Policy != "mine@7=2,least-request=1" || d.Server().ID != "w3" {
		t.Errorf("%s by %+v", d.Server().ID, d.Mandate)
	}
	if err := alone.Quarantine(context.Background(), rollout.Digest{}, ""); err != nil {
		t.Error(err)
	}
}
