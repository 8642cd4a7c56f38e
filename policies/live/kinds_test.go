package live_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/live"
	"github.com/yardmaster/yardmaster/policies/module"
	"github.com/yardmaster/yardmaster/policies/module/wattest"
)

// wasmOther is an admission policy or an autoscaler.
func wasmOther(kind, name, release, export, signature, code string, request uint32, columns []uint32, extra string) []byte {
	m := wattest.New()
	m.Memory(2, 2)
	m.Export("memory", module.KindMemory, 0)
	m.Export("ym_abi_1", module.KindFunc, m.Func("->", "", ""))
	m.Export("ym_layout", module.KindFunc, m.Func("-> i32", "", "i32.const 1024"))
	m.Export("ym_configure", module.KindFunc, m.Func("i32 -> i32", "", "i32.const 0"))
	m.Export(export, module.KindFunc, m.Func(signature, "", code))
	words := []uint32{0x314c4d59, 1 << 16, 10 + uint32(len(columns)), rows, block, request, paramAt, 0, 0, uint32(len(columns))}
	return finish(m, append(words, columns...), `{"abi":"1.0","kind":"`+kind+`","name":"`+name+`","version":"`+release+`"`+extra+`}`)
}

// Verdicts: serve with priority 9; refuse with 429 after 2 s.
const (
	serve  = `i64.const 2304`
	refuse = `i64.const 8589934592000 i64.const 28114946 i64.or`
)

func wasmAdmission(name, release, code, extra string) []byte {
	return wasmOther("admission", name, release, "ym_admit", "-> i64", code, abi.AdmissionRequestSize, nil, extra)
}

func TestAdmission(t *testing.T) {
	c := newCluster()
	r := newRig(t, c, live.Config{ShadowShare: 1})
	policy := r.node.Admission(admit.Open{})
	ask := func(model string) admit.Verdict {
		return policy.Admit(&admit.Ask{Now: time.Now(), Model: xxhash.Sum64String(model), Class: admit.Standard})
	}
	if v := ask("m"); v != (admit.Open{}).Admit(&admit.Ask{Class: admit.Standard}) {
		t.Errorf("with nothing bound: %+v", v)
	}
	yes := c.put(t, "yes", "1", rollout.Admission, wasmAdmission("yes", "1", serve, ""))
	no := c.put(t, "no", "1", rollout.Admission, wasmAdmission("no", "1", refuse, ""))
	bad := c.put(t, "bad", "1", rollout.Admission, wasmAdmission("bad", "1", "unreachable", `,"fail":"closed"`))
	bind := func(model string, verb rollout.Verb, stage rollout.Stage) {
		r.await(c.change(t, rollout.Change{Kind: rollout.Admission, Model: model, Verb: verb, Stage: stage}))
	}
	bind("", rollout.VerbPromote, only("yes", yes))
	bind("strict", rollout.VerbPromote, rollout.Stage{Parts: []rollout.Part{rollout.NewPart("yes", yes, 1), rollout.NewPart("no", no, 1)}})
	if v := ask("m"); v.Action != admit.Serve || v.Priority != 9 {
		t.Errorf("all models: %+v", v)
	}
	if v := ask("strict"); v.Action != admit.Reject || v.RetryAfter != 2*time.Second || v.Unavailable || v.Policy != "no@1" || v.Digest != no.String() || v.Index != c.Rollout().Index() {
		t.Errorf("a model of its own: %+v", v)
	}
	bind("", rollout.VerbShadow, only("no", no))
	if v := ask("m"); v.Action != admit.Serve {
		t.Errorf("with a shadow: %+v", v)
	}
	if n := r.count(measure.PolicyShadow, "no@1", "disagree"); n != 1 {
		t.Errorf("%v disagree", n)
	}
	if n := r.count(measure.PolicyDecisions, "admission", "yes@1=1,no@1=1", "active"); n != 1 {
		t.Errorf("%v decisions of the pair", n)
	}
	bind("", rollout.VerbPromote, only("bad", bad))
	if v := ask("m"); v.Action != admit.Reject || !v.Unavailable {
		t.Errorf("one that fails closed: %+v", v)
	}
	lax := c.put(t, "lax", "2", rollout.Admission, wasmAdmission("lax", "2", "unreachable", ""))
	bind("", rollout.VerbPromote, only("yes", yes))
	bind("", rollout.VerbPromote, only("lax", lax))
	eventually(t, "it is quarantined", func() bool { return ask("m").Priority == 9 })
}

// What fails closed goes on refusing in quarantine, on a node that starts then, too,
// until an operator changes what is bound.
func TestClosedAdmissionStaysClosed(t *testing.T) {
	c := newCluster()
	yes := c.put(t, "yes", "1", rollout.Admission, wasmAdmission("yes", "1", serve, ""))
	bad := c.put(t, "bad", "1", rollout.Admission, wasmAdmission("bad", "1", "unreachable", `,"fail":"closed"`))
	promote := func(stage rollout.Stage) uint64 {
		return c.change(t, rollout.Change{Kind: rollout.Admission, Verb: rollout.VerbPromote, Stage: stage})
	}
	promote(only("yes", yes))
	r := newRig(t, c, live.Config{})
	policy := r.node.Admission(admit.Open{})
	refuses := func(policy admit.Policy) bool {
		v := policy.Admit(&admit.Ask{Now: time.Now(), Class: admit.Standard})
		return v.Action == admit.Reject && v.Unavailable && v.Reason == "policy_failed"
	}
	r.await(promote(only("bad", bad)))
	eventually(t, "it is quarantined", func() bool {
		if !refuses(policy) {
			t.Fatal("it let one in")
		}
		v, _ := c.Rollout().Version(bad)
		return v.Quarantined > 0
	})
	r.await(c.Rollout().Index())
	if !refuses(policy) {
		t.Error("it lets in what made it trip")
	}
	if b := r.node.Status().Bindings; len(b) != 1 || b[0].Refuses != "bad@1" || b[0].Why != "" {
		t.Errorf("it does not say so: %+v", b)
	}
	late := newRig(t, c, live.Config{})
	late.await(c.Rollout().Index())
	if !refuses(late.node.Admission(admit.Open{})) {
		t.Error("a node that starts then lets everything in")
	}
	r.await(c.change(t, rollout.Change{Kind: rollout.Admission, Verb: rollout.VerbRollback}))
	if refuses(policy) || r.node.Status().Bindings[0].Refuses != "" {
		t.Error("an operator's rollback did not help")
	}
}

// A node whose guard does not come refuses, where that was bound before it began.
func TestClosedAdmissionThatIsNotReady(t *testing.T) {
	c := newCluster()
	guard := c.put(t, "guard", "1", rollout.Admission, wasmAdmission("guard", "1", serve, `,"fail":"closed"`))
	c.change(t, rollout.Change{Kind: rollout.Admission, Verb: rollout.VerbPromote, Stage: only("guard", guard)})
	c.mu.Lock()
	wasm := c.blobs[guard]
	delete(c.blobs, guard)
	c.mu.Unlock()
	r := newRig(t, c, live.Config{})
	policy := r.node.Admission(admit.Open{})
	eventually(t, "it says so", func() bool { return strings.Contains(r.node.News(), "guard@1: its bytes cannot be had yet") })
	if v := policy.Admit(&admit.Ask{Now: time.Now()}); v.Reason != "policy_failed" {
		t.Errorf("%+v", v)
	}
	c.mu.Lock()
	c.blobs[guard] = wasm
	c.mu.Unlock()
	r.await(c.Rollout().Index())
	if v := policy.Admit(&admit.Ask{Now: time.Now()}); v.Action != admit.Serve || v.Priority != 9 {
		t.Errorf("%+v", v)
	}
}

// counting counts what it is asked.
type counting struct{ admitted, ticked int }

func (c *counting) Name() string { return "counting" }

func (c *counting) Admit(*admit.Ask) admit.Verdict {
	c.admitted++
	return admit.Verdict{Action: admit.Serve}
}

func (c *counting) Tick(_ *scale.Window, want []scale.Want) {
	c.ticked++
	for i := range want {
		want[i] = scale.Want{Replicas: 3}
	}
}

// A shadow is compared with the configured policy while nothing is active, which is
// asked once for each decision, also by a shadow that has no answer.
func TestShadowsBesideWhatIsConfigured(t *testing.T) {
	c := newCluster()
	r := newRig(t, c, live.Config{ShadowShare: 1})
	native := &counting{}
	guard, scaler := r.node.Admission(native), r.node.Autoscaler(native)
	no := c.put(t, "no", "1", rollout.Admission, wasmAdmission("no", "1", refuse, ""))
	mute := c.put(t, "mute", "1", rollout.Admission, wasmAdmission("mute", "1", "unreachable", ""))
	const three = `i32.const 65536 i32.const 3 i32.store 0 i32.const 66560 i32.const 8 i32.store 0 i32.const 0`
	d := c.put(t, "three", "1", rollout.Autoscaler, wasmOther("autoscaler", "three", "1", "ym_tick", "i32 -> i32", three, abi.PoolsRequestSize, []uint32{columnA, scores}, ""))
	shadow := func(k rollout.Kind, stage rollout.Stage) {
		r.await(c.change(t, rollout.Change{Kind: k, Verb: rollout.VerbShadow, Stage: stage}))
	}
	ask := func() {
		t.Helper()
		if v := guard.Admit(&admit.Ask{Now: time.Now(), Class: admit.Standard}); v.Action != admit.Serve || v.Policy != "" {
			t.Errorf("%+v", v)
		}
	}
	shadow(rollout.Admission, only("no", no))
	ask()
	shadow(rollout.Admission, only("mute", mute))
	ask()
	if yes, skipped := r.count(measure.PolicyShadow, "no@1", "disagree"), r.count(measure.PolicyShadow, "mute@1", "skipped"); yes != 1 || skipped != 1 || native.admitted != 2 {
		t.Errorf("%v disagree, %v skipped, and what is configured was asked %d times", yes, skipped, native.admitted)
	}
	shadow(rollout.Autoscaler, only("three", d))
	w := scale.Window{Now: time.Now(), Interval: time.Second, Pools: []scale.Pool{{Samples: []scale.Sample{{}}}}}
	scaler.Tick(&w, make([]scale.Want, 1))
	if n := r.count(measure.PolicyShadow, "three@1", "agree"); n != 1 || native.ticked != 1 || scaler.Mandate().Index != 0 {
		t.Errorf("%v agree, %d ticks, under %+v", n, native.ticked, scaler.Mandate())
	}
}

func TestAutoscaler(t *testing.T) {
	c := newCluster()
	r := newRig(t, c, live.Config{})
	a := r.node.Autoscaler(&scale.Target{})
	w := scale.Window{Now: time.Now(), Interval: time.Second, Pools: []scale.Pool{{Samples: []scale.Sample{{}}}}}
	want := make([]scale.Want, 1)
	a.Tick(&w, want)
	if a.Mandate().Index != 0 || a.Name() != (&scale.Target{}).Name() {
		t.Errorf("with nothing bound: %+v", a.Mandate())
	}
	const three = `i32.const 65536 i32.const 3 i32.store 0 i32.const 66560 i32.const 8 i32.store 0 i32.const 0`
	d := c.put(t, "three", "1", rollout.Autoscaler, wasmOther("autoscaler", "three", "1", "ym_tick", "i32 -> i32", three, abi.PoolsRequestSize, []uint32{columnA, scores}, ""))
	bad := c.put(t, "bad", "1", rollout.Autoscaler, wasmOther("autoscaler", "bad", "1", "ym_tick", "i32 -> i32", "unreachable", abi.PoolsRequestSize, []uint32{columnA, scores}, ""))
	bind := func(stage rollout.Stage) uint64 {
		index := c.change(t, rollout.Change{Kind: rollout.Autoscaler, Verb: rollout.VerbPromote, Stage: stage})
		r.await(index)
		return index
	}
	index := bind(only("three", d))
	a.Tick(&w, want)
	if want[0].Replicas != 3 || a.Name() != "three@1" || a.Mandate().Index != index {
		t.Errorf("%+v by %+v", want[0], a.Mandate())
	}
	bind(only("bad", bad))
	eventually(t, "the one before ticks again", func() bool {
		a.Tick(&w, want)
		if a.Name() == "bad@1" && !want[0].Keep {
			t.Errorf("a policy that fails wants %+v", want[0])
		}
		return a.Name() == "three@1" && want[0].Replicas == 3
	})
}
