package planner

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/core/wire/control"
	"github.com/yardmaster/yardmaster/core/wire/section"
)

// policyDigest is the digest of the test's version name@release.
func policyDigest(ref string) rollout.Digest { return rollout.DigestOf([]byte(ref)) }

func policyVersion(policy, release string, kind rollout.Kind) rollout.Version {
	return rollout.Version{Policy: policy, Release: release, Kind: kind, Digest: policyDigest(policy + "@" + release), Size: 4096}
}

// policyStage is a stage of the version name@release.
func policyStage(ref string) rollout.Stage {
	policy, _, _ := strings.Cut(ref, "@")
	return rollout.Stage{Parts: []rollout.Part{rollout.NewPart(policy, policyDigest(ref), 1)}}
}

func newHarness3(t testing.TB) *harness {
	h := newHarness(t)
	h.do(RequestID{}, SetFeatureLevel{3})
	return h
}

// drawCommand3 draws commands of feature level 3.
func drawCommand3(t *rapid.T) Command {
	name, release := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "policy"), rapid.SampledFrom([]string{"1", "2"}).Draw(t, "release")
	var ifIndex *uint64
	if rapid.IntRange(0, 2).Draw(t, "if") == 0 {
		ifIndex = new(rapid.Uint64Range(0, 20).Draw(t, "index"))
	}
	switch rapid.IntRange(0, 9).Draw(t, "kind 3") {
	case 0:
		return DeletePolicy{policyDigest(name + "@" + release)}
	case 1:
		return QuarantinePolicy{policyDigest(name + "@" + release), "traps"}
	case 2:
		return WritePolicyState{name, []rollout.Write{
			{Op: rollout.WriteSet, Key: release, Value: []byte(name)},
			{Op: rollout.WriteAdd, Key: "n", Delta: 1},
			{Op: rollout.WriteDelete, Key: "2"},
			{Op: rollout.WriteSet, Key: "\xff\x00" + name, Value: []byte(release)}, // guests' keys need not be text
		}}
	case 3:
		pool := scale.PoolPlan{Key: scale.Key{Model: name, Role: fleet.RoleBoth}, Desired: rapid.Uint32Range(0, 3).Draw(t, "desired")}
		return SetScalePlan{Plan: scale.Plan{Pools: []scale.PoolPlan{pool}, Policy: release}, IfIndex: ifIndex}
	case 4, 5, 6:
		return PutPolicy{policyVersion(name, release, rollout.Router)}
	default:
		c := rollout.Change{
			Kind: rollout.Router, Model: rapid.SampledFrom([]string{"", "m"}).Draw(t, "model"),
			Verb: rollout.Verb(rapid.IntRange(1, 7).Draw(t, "verb")), IfIndex: ifIndex,
		}
		if c.Verb <= rollout.VerbPromote {
			c.Stage = policyStage(name + "@" + release)
		}
		if c.Verb == rollout.VerbCanary {
			c.Share = 0.25
		}
		return ChangeBinding{c}
	}
}

func TestPoliciesInTheLog(t *testing.T) {
	h := newHarness3(t)
	promote := func(ref string, ifIndex *uint64) ChangeBinding {
		return ChangeBinding{rollout.Change{Kind: rollout.Router, Verb: rollout.VerbPromote, Stage: policyStage(ref), IfIndex: ifIndex}}
	}
	h.walk([]step{
		{"bind what is not there", promote("kv@1", nil), Result{Code: UnknownPolicy}},
		{"put", PutPolicy{policyVersion("kv", "1", rollout.Router)}, Result{Version: 3, Changed: true}},
		{"put again", PutPolicy{policyVersion("kv", "1", rollout.Router)}, Result{Version: 3}},
		{"another kind", PutPolicy{policyVersion("kv", "2", rollout.Admission)}, Result{Code: Exists}},
		{"promote", promote("kv@1", new(uint64(0))), Result{Version: 6, Changed: true}},
		{"promote if there is none", promote("kv@1", new(uint64(0))), Result{Code: Conflict, Version: 6}},
		{"promote again", promote("kv@1", nil), Result{Version: 6}},
		{"delete", DeletePolicy{policyDigest("kv@1")}, Result{Code: Bound}},
		{"delete nothing", DeletePolicy{policyDigest("kv@9")}, Result{}},
		{"pin", ChangeBinding{rollout.Change{Kind: rollout.Router, Verb: rollout.VerbPin}}, Result{Version: 11, Changed: true}},
		{"rollback", ChangeBinding{rollout.Change{Kind: rollout.Router, Verb: rollout.VerbRollback}}, Result{Code: Pinned, Version: 11}},
		{"unpin", ChangeBinding{rollout.Change{Kind: rollout.Router, Verb: rollout.VerbUnpin}}, Result{Version: 13, Changed: true}},
		{"write", WritePolicyState{"kv", []rollout.Write{{Op: rollout.WriteAdd, Key: "n", Delta: 2}}}, Result{Changed: true}},
		{"write of nobody", WritePolicyState{"no", []rollout.Write{{Op: rollout.WriteAdd, Key: "n", Delta: 2}}}, Result{Code: UnknownPolicy}},
		{"quarantine", QuarantinePolicy{policyDigest("kv@1"), "traps"}, Result{Changed: true}},
		{"quarantine again", QuarantinePolicy{policyDigest("kv@1"), "traps"}, Result{}},
		{"quarantine nothing", QuarantinePolicy{policyDigest("kv@9"), "traps"}, Result{Code: UnknownPolicy}},
		{"promote what traps", promote("kv@1", nil), Result{Code: Quarantined, Version: 16}},
		{"rollback to what was before", ChangeBinding{rollout.Change{Kind: rollout.Router, Verb: rollout.VerbRollback}}, Result{Code: NothingThere, Version: 16}},
		{"clear", ChangeBinding{rollout.Change{Kind: rollout.Router, Verb: rollout.VerbClear}}, Result{Changed: true}},
		{"delete", DeletePolicy{policyDigest("kv@1")}, Result{Changed: true}},
		{"plan", SetScalePlan{Plan: scale.Plan{Policy: "x"}, IfIndex: new(uint64(5))}, Result{Code: Conflict}},
		{"plan", SetScalePlan{Plan: scale.Plan{Policy: "x"}, IfIndex: new(uint64(0))}, Result{Version: 24, Changed: true}},
		{"the same plan", SetScalePlan{Plan: scale.Plan{Policy: "x"}}, Result{Version: 24}},
		{"another plan", SetScalePlan{Plan: scale.Plan{Policy: "y"}, IfIndex: new(uint64(24))}, Result{Version: 26, Changed: true}},
	})
	for code, want := range map[Code]error{
		UnknownPolicy: rollout.ErrUnknown, Exists: rollout.ErrExists, Bound: rollout.ErrBound, Pinned: rollout.ErrPinned,
		Quarantined: rollout.ErrQuarantined, NothingThere: rollout.ErrNothing,
	} {
		if err := (Result{Code: code}).Err(); !errors.Is(err, want) || code.String() == "unknown" {
			t.Errorf("%v: %v", code, err)
		}
	}
}

// Changed is closed by changes of policies and the plan, and by nothing else.
func TestChanged(t *testing.T) {
	h := newHarness3(t)
	for i, tt := range []struct {
		cmd  Command
		want bool
	}{
		{SetRegister{Key: "k"}, false},
		{PutPolicy{policyVersion("kv", "1", rollout.Router)}, true},
		{PutPolicy{policyVersion("kv", "1", rollout.Router)}, false},
		{ChangeBinding{rollout.Change{Kind: rollout.Router, Verb: rollout.VerbRollback}}, false},
		{WritePolicyState{"kv", []rollout.Write{{Op: rollout.WriteSet, Key: "k"}}}, true},
		{SetScalePlan{}, true},
		{SetScalePlan{}, false},
	} {
		ch := h.m.Changed()
		h.do(RequestID{}, tt.cmd)
		select {
		case <-ch:
			if !tt.want {
				t.Errorf("step %d rang", i)
			}
		default:
			if tt.want {
				t.Errorf("step %d did not ring", i)
			}
		}
	}
	ch := h.m.Changed()
	if err := h.m.Restore(bytes.NewReader(snapshotBytes(t, h.m))); err != nil {
		t.Fatal(err)
	}
	<-ch // restoring rings, whatever was restored
}

func TestEncodeRefusesLevel3(t *testing.T) {
	pool := func(model string, n uint32) scale.PoolPlan {
		return scale.PoolPlan{Key: scale.Key{Model: model, Role: fleet.RoleBoth}, Desired: n}
	}
	h := newHarness3(t)
	before := h.m.Digest()
	for i, cmd := range []Command{
		PutPolicy{},
		DeletePolicy{},
		ChangeBinding{},
		QuarantinePolicy{policyDigest("x"), ""},
		QuarantinePolicy{policyDigest("x"), strings.Repeat("x", rollout.MaxReason+1)},
		WritePolicyState{Policy: "x"},
		SetScalePlan{Plan: scale.Plan{Pools: []scale.PoolPlan{pool("b", 1), pool("a", 1)}}},
		SetScalePlan{Plan: scale.Plan{Pools: []scale.PoolPlan{pool("a", 1), pool("a", 1)}}},
		SetScalePlan{Plan: scale.Plan{Pools: []scale.PoolPlan{pool("a", maxReplicas), pool("b", 1)}}},
		SetScalePlan{Plan: scale.Plan{Pools: []scale.PoolPlan{pool("", 1)}}},
		SetScalePlan{Plan: scale.Plan{Policy: strings.Repeat("x", maxPlanText+1)}},
		SetScalePlan{Plan: scale.Plan{At: -1}},
	} {
		if _, err := Encode(RequestID{}, cmd); !errors.Is(err, ErrInvalid) {
			t.Errorf("Encode of command %d, %T: %v", i, cmd, err)
		}
		// What Apply refuses does not depend on Encode. Deleting nothing is no fault.
		if res := h.m.execute(h.index, cmd); res.Changed || res.Code == OK && cmd != (DeletePolicy{}) {
			t.Errorf("command %d, %T: %+v", i, cmd, res)
		}
	}
	if h.m.Digest() != before {
		t.Error("a refused command changed the state")
	}
}

// Snapshots read back must be states that Apply could have made.
func TestRestoreRefusesPoliciesThatCannotBe(t *testing.T) {
	good := newHarness3(t)
	good.do(RequestID{}, PutPolicy{policyVersion("kv", "1", rollout.Router)})
	good.do(RequestID{}, ChangeBinding{rollout.Change{Kind: rollout.Router, Verb: rollout.VerbPromote, Stage: policyStage("kv@1")}})
	good.do(RequestID{}, WritePolicyState{"kv", []rollout.Write{{Op: rollout.WriteSet, Key: "k"}}})
	version := fromVersion(&rollout.Version{Policy: "kv", Release: "1", Kind: rollout.Router, Digest: policyDigest("kv@1"), Size: 1, Index: 2})
	stage := fromStage(policyStage("kv@1"))
	type sec struct {
		t sectionType
		m proto.Message
	}
	versions := sec{sectionPolicies, &control.PoliciesSection{Versions: []*control.PolicyVersion{version}}}
	end := sec{sectionRollout, &control.RolloutSection{Index: 2}}
	bindings := func(b ...*control.PolicyBinding) sec {
		return sec{sectionBindings, &control.BindingsSection{Bindings: b}}
	}
	for name, sections := range map[string][]sec{
		"":                      {versions, bindings(&control.PolicyBinding{Kind: "router", Active: stage, Index: 2}), end},
		"no end":                {versions},
		"two ends":              {versions, end, end},
		"versions after it":     {end, versions},
		"a binding of nothing":  {bindings(&control.PolicyBinding{Kind: "router", Active: stage, Index: 2}), end},
		"bindings out of order": {versions, bindings(&control.PolicyBinding{Kind: "router", Index: 2}, &control.PolicyBinding{Kind: "admission", Index: 2}), end},
		"a digest cut short":    {versions, bindings(&control.PolicyBinding{Kind: "router", Active: &control.PolicyStage{Parts: []*control.PolicyPart{{Policy: "kv", Digest: []byte{1}, Weight: 1}}}, Index: 2}), end},
		"of the future":         {versions, bindings(&control.PolicyBinding{Kind: "router", Active: stage, Index: 99}), sec{sectionRollout, &control.RolloutSection{Index: 99}}},
		"an older table":        {versions, sec{sectionRollout, &control.RolloutSection{Index: 1}}},
		"a plan never made":     {sec{sectionRollout, &control.RolloutSection{Plan: &control.ScalePlan{}}}},
		"an index and no plan":  {sec{sectionRollout, &control.RolloutSection{PlanIndex: 1}}},
		"a plan of no model":    {sec{sectionRollout, &control.RolloutSection{PlanIndex: 1, Plan: &control.ScalePlan{Pools: []*control.ScalePool{{Role: 1}}}}}},
		"a role of the future":  {sec{sectionRollout, &control.RolloutSection{PlanIndex: 1, Plan: &control.ScalePlan{Pools: []*control.ScalePool{{Model: "m", Role: 300}}}}}},
		"state of nobody":       {sec{sectionPolicyState, &control.PolicyStateSection{Policy: "kv", Index: 1}}, end},
		"state of the future":   {versions, sec{sectionPolicyState, &control.PolicyStateSection{Policy: "kv", Index: 9}}, end},
	} {
		var buf bytes.Buffer
		sw := &sectionWriter{Writer: section.NewWriter(&buf, snapshotMagic), level: 3}
		sw.message(sectionHead, &control.HeadSection{FeatureLevel: 3, Applied: 4})
		for _, s := range sections {
			sw.message(s.t, s.m)
		}
		sw.message(sectionEnd, &control.EndSection{Sections: sw.Count()})
		if _, err := sw.result(); err != nil {
			t.Fatal(err)
		}
		err := New().Restore(bytes.NewReader(buf.Bytes()))
		if name == "" && err != nil || name != "" && (!errors.Is(err, ErrMalformed) || errors.Is(err, ErrUnknownEntry)) {
			t.Errorf("%q: %v", name, err)
		}
	}
	good.m.meta.Store(&meta{featureLevel: 2})
	if err := New().Restore(bytes.NewReader(snapshotBytes(t, good.m))); !errors.Is(err, ErrMalformed) {
		t.Errorf("policies at level 2: %v", err)
	}
}

// manyPolicies has all versions and bindings there can be.
func manyPolicies(t testing.TB) *harness {
	h := newHarness3(t)
	do := func(cmd Command) {
		t.Helper()
		h.index++
		if res := h.m.execute(h.index, cmd); res.Code != OK {
			t.Fatalf("%T: %+v", cmd, res)
		}
	}
	for p := range rollout.MaxPolicies {
		for r := range rollout.MaxVersions {
			v := policyVersion(fmt.Sprint("p", p), strconv.Itoa(r), rollout.Router)
			v.Report = strings.Repeat("r", rollout.MaxReport)
			do(PutPolicy{v})
		}
	}
	for b := range rollout.MaxBindings {
		for p := range rollout.MaxPrevious + 1 {
			do(ChangeBinding{rollout.Change{
				Kind: rollout.Router, Model: fmt.Sprint("m", b), Verb: rollout.VerbPromote, Stage: policyStage(fmt.Sprintf("p%d@%d", p, b%rollout.MaxVersions)),
			}})
		}
	}
	for p := range 7 {
		for at := range 4 {
			c := WritePolicyState{Policy: fmt.Sprint("p", p)}
			for i := range rollout.MaxWrites {
				c.Writes = append(c.Writes, rollout.Write{Op: rollout.WriteSet, Key: fmt.Sprint(at, i), Value: make([]byte, rollout.MaxStateValue)})
			}
			do(c)
		}
	}
	h.m.applied = h.index
	return h
}

// The largest state of policies is written and read.
func TestSnapshotOfManyPolicies(t *testing.T) {
	h := manyPolicies(t)
	back := New()
	if err := back.Restore(bytes.NewReader(snapshotBytes(t, h.m))); err != nil {
		t.Fatal(err)
	}
	if back.Digest() != h.m.Digest() || back.Checksum() != h.m.Checksum() {
		t.Error("state differs after restore")
	}
}

// A machine that took its checksum while there were versions and bindings has the
// checksum of one that never did, when the last of them is gone.
func TestChecksumOfWhatIsGone(t *testing.T) {
	often, seldom := newHarness3(t), newHarness3(t)
	for _, cmd := range []Command{
		PutPolicy{policyVersion("kv", "1", rollout.Router)},
		ChangeBinding{rollout.Change{Kind: rollout.Router, Verb: rollout.VerbPromote, Stage: policyStage("kv@1")}},
		ChangeBinding{rollout.Change{Kind: rollout.Router, Verb: rollout.VerbClear}},
		DeletePolicy{policyDigest("kv@1")},
	} {
		often.do(RequestID{}, cmd)
		seldom.do(RequestID{}, cmd)
		sum := often.m.Checksum()
		restored := New()
		if err := restored.Restore(bytes.NewReader(snapshotBytes(t, often.m))); err != nil {
			t.Fatal(err)
		}
		if got := restored.Checksum(); got != sum {
			t.Errorf("after %T: checksum %#x, restored %#x", cmd, sum, got)
		}
	}
	if got, want := often.m.Checksum(), seldom.m.Checksum(); got != want {
		t.Errorf("checksum %#x, of the machine that never took one %#x", got, want)
	}
}

// A change of a binding among the most versions there can be, with the checksum
// that may follow it.
func BenchmarkChangeBinding(b *testing.B) {
	m := manyPolicies(b).m
	m.Checksum()
	b.ReportAllocs()
	for index := m.applied + 1; b.Loop(); index++ {
		ref := fmt.Sprintf("p1@%d", index%2)
		m.execute(index, ChangeBinding{rollout.Change{Kind: rollout.Router, Model: "m7", Verb: rollout.VerbPromote, Stage: policyStage(ref)}})
		m.Checksum()
	}
}
