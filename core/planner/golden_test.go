package planner

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/scale"
)

var rewrite = flag.Bool("rewrite", false, "write the golden log and snapshot of the newest level anew")

// goldenLog is one entry of every type, in an order that leaves something of
// each behind.
func goldenLog(t *testing.T) [][]byte {
	b := testWorker("decode-1", "inc-b")
	b.Role, b.Labels = fleet.RoleDecode, nil
	cmds := []Command{
		InitCluster{"0123456789abcdef"},
		SetFeatureLevel{1},
		RegisterWorker{Worker: testWorker("both-0", "inc-a")},
		RegisterWorker{Worker: b, IfAbsent: true},
		DrainWorker{"both-0", 3},
		RegisterWorker{Worker: testWorker("gone", "inc-c")},
		LeaveWorker{"gone", 6},
		ExpireWorker{"decode-1", 3},
	}
	var out [][]byte
	for i, c := range cmds {
		e, err := Encode(RequestID{0xaa, byte(i)}, c)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return append(out, append([]byte{1, 0xff}, make([]byte, 16)...)) // ignorable, of the future
}

// goldenLog2 goes on where goldenLog ended, with one entry of every type of
// feature level 2.
func goldenLog2(t *testing.T) [][]byte {
	a, b := member("a"), member("b")
	b.Role, b.AdminAddr = MemberGateway, ""
	cmds := []Command{
		SetFeatureLevel{2},
		SetRegister{Key: "autopilot", Value: []byte("\x00\xffsettings")},
		SetRegister{Key: "empty"},
		SetRegister{Key: "gone", Value: []byte("x"), IfVersion: new(uint64(0))},
		DeleteRegister{Key: "gone", IfVersion: new(uint64(13))},
		DeleteRegister{Key: "autopilot", IfVersion: new(uint64(1))}, // refused
		SetQuota{"t1", 1000},
		SetQuota{"t2", 5},
		SetQuota{"t3", 7},
		DropQuota{"t3"},
		GrantQuota{"t1", "gw-1", 29_000_000, 600},
		GrantQuota{"t1", "gw-2", 29_000_000, 600}, // 400 are left
		ReturnQuota{"t1", "gw-1", 29_000_000, 100},
		GrantQuota{"t2", "gw-3", 29_000_000, 1},
		EndHolder{"gw-3"},
		PutMember{a},
		PutMember{b},
		PutMember{member("c")},
		DropMember{"c", "i"},
	}
	out := goldenLog(t)
	for i, c := range cmds {
		e, err := Encode(RequestID{0xbb, byte(i)}, c)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

// goldenCommands3 are entries of every type of feature level 3, in an order that
// leaves something of each behind. They follow goldenLog2, 28 entries.
func goldenCommands3() []Command {
	kv1, kv2, gate := policyVersion("kv", "1", rollout.Router), policyVersion("kv", "2", rollout.Router), policyVersion("gate", "0.1-rc", rollout.Admission)
	bad := policyVersion("bad", "1", rollout.Router)
	gate.Signer, gate.Report, gate.Created = "ops", `{"fuel_p99":812}`, 1_700_000_000_000
	blend := rollout.Stage{Parts: []rollout.Part{
		rollout.NewPart("kv", kv2.Digest, 0.75, rollout.Param{Name: "w", Value: -1.5}, rollout.Param{Name: "a", Value: 2}),
		rollout.NewPart("least-request", rollout.Digest{}, 0.25),
	}}
	change := func(c rollout.Change) ChangeBinding { return ChangeBinding{c} }
	return []Command{
		SetFeatureLevel{3}, // 29
		PutPolicy{kv1},
		PutPolicy{kv2},
		PutPolicy{gate},
		PutPolicy{bad},
		PutPolicy{policyVersion("gone", "1", rollout.Observer)},
		DeletePolicy{policyDigest("gone@1")},
		change(rollout.Change{Kind: rollout.Router, Verb: rollout.VerbPromote, Stage: policyStage("kv@1")}), // 36
		change(rollout.Change{Kind: rollout.Router, Verb: rollout.VerbShadow, Stage: blend, IfIndex: new(uint64(36))}),
		change(rollout.Change{Kind: rollout.Router, Verb: rollout.VerbCanary, Share: 0.05, IfIndex: new(uint64(36))}), // conflict
		change(rollout.Change{Kind: rollout.Router, Verb: rollout.VerbCanary, Share: 0.05}),
		change(rollout.Change{Kind: rollout.Router, Model: "m/1", Verb: rollout.VerbPromote, Stage: policyStage("bad@1")}),
		change(rollout.Change{Kind: rollout.Router, Model: "m/1", Verb: rollout.VerbPromote, Stage: rollout.NativeStage("kv-cost")}),
		change(rollout.Change{Kind: rollout.Admission, Verb: rollout.VerbPromote, Stage: policyStage("gate@0.1-rc"), IfIndex: new(uint64(0))}),
		change(rollout.Change{Kind: rollout.Admission, Verb: rollout.VerbPin}),
		change(rollout.Change{Kind: rollout.Admission, Verb: rollout.VerbRollback}), // pinned
		QuarantinePolicy{bad.Digest, "5 traps in 30 s: unreachable"},
		DeletePolicy{kv1.Digest}, // bound
		WritePolicyState{"kv", []rollout.Write{
			{Op: rollout.WriteSet, Key: "weights", Value: []byte{0, 0xff}},
			{Op: rollout.WriteAdd, Key: "n", Delta: -7},
			{Op: rollout.WriteSet, Key: "x"},
			{Op: rollout.WriteDelete, Key: "x"},
		}},
		WritePolicyState{"gate", []rollout.Write{{Op: rollout.WriteDelete, Key: "none"}}},
		SetScalePlan{Plan: scale.Plan{
			Pools: []scale.PoolPlan{
				{Key: scale.Key{Model: "m", Role: fleet.RolePrefill}, Desired: 2, Reason: "queue"},
				{Key: scale.Key{Model: "m", Role: fleet.RoleDecode}, Desired: 5},
			},
			Budget: 8, Policy: "native:queue-and-kv", At: 1_700_000_000_000,
		}, IfIndex: new(uint64(0))},
		change(rollout.Change{Kind: rollout.Router, Verb: rollout.VerbShadow, Stage: rollout.NativeStage("sticky")}), // the first one decides since its canary
	}
}

func goldenLog3(t *testing.T) [][]byte {
	out := goldenLog2(t)
	for i, c := range goldenCommands3() {
		e, err := Encode(RequestID{0xcc, byte(i)}, c)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

// The bytes that this release writes are those it has always written, and what
// it wrote can be read: fixtures of every release stay here. Those of
// earlier levels are not written anew by -rewrite: no change of them is right.
func TestGoldenLogAndSnapshot(t *testing.T) {
	for _, g := range []struct {
		level uint32
		log   func(*testing.T) [][]byte
		fixed bool
	}{{1, goldenLog, true}, {2, goldenLog2, true}, {3, goldenLog3, false}} {
		t.Run(fmt.Sprintf("level %d", g.level), func(t *testing.T) {
			m := NewAtLevel(g.level)
			var lines []string
			for i, e := range g.log(t) {
				lines = append(lines, hex.EncodeToString(e))
				if _, err := m.Apply(uint64(i+1), e); err != nil {
					t.Fatal(err)
				}
			}
			log, snap := strings.Join(lines, "\n")+"\n", snapshotBytes(t, m)
			logPath := filepath.Join("testdata", fmt.Sprintf("log-v%d.hex", g.level))
			snapPath := filepath.Join("testdata", fmt.Sprintf("snapshot-v%d.bin", g.level))
			if *rewrite && !g.fixed {
				writeFile(t, logPath, []byte(log))
				writeFile(t, snapPath, snap)
			}
			if got := readFile(t, logPath); string(got) != log {
				t.Errorf("entries changed on the wire:\ngot  %s\nwant %s", log, got)
			}
			if got := readFile(t, snapPath); !bytes.Equal(got, snap) {
				t.Errorf("snapshot changed on the wire:\ngot  %x\nwant %x", snap, got)
			}
			back := New() // the newest binary
			if err := back.Restore(bytes.NewReader(readFile(t, snapPath))); err != nil {
				t.Fatal(err)
			}
			if back.Digest() != m.Digest() {
				t.Error("the golden snapshot restores to another state")
			}
		})
	}
}

// The checksums of the golden states.
const (
	goldenChecksum  = 0x18dee6a88b44daf4 // of level 2
	goldenChecksum3 = 0xfc4a69dee2472f99 // of level 3
)

// The golden log of level 2 leaves something of every kind behind.
func TestGoldenStateIsFull(t *testing.T) {
	m := New()
	if err := m.Restore(bytes.NewReader(readFile(t, "testdata/snapshot-v2.bin"))); err != nil {
		t.Fatal(err)
	}
	t1, _ := m.Quota("t1")
	if len(m.Registers()) != 2 || len(m.Members()) != 2 || t1 == nil || len(t1.Grants) != 2 || t1.Granted != 900 || len(m.View().Workers) != 2 {
		t.Errorf("registers %+v\nmembers %+v\nt1 %+v\nworkers %d", m.Registers(), m.Members(), t1, len(m.View().Workers))
	}
	// Nodes of different releases compare it.
	if sum := m.Checksum(); sum != goldenChecksum {
		t.Errorf("checksum %#x", sum)
	}
	if res, ok := m.seen.find(RequestID{0xbb, 11}); !ok || res.Granted != 400 {
		t.Errorf("remembered grant: %+v", res)
	}
}

// So does that of level 3.
func TestGoldenStateOfLevel3IsFull(t *testing.T) {
	m := New()
	if err := m.Restore(bytes.NewReader(readFile(t, "testdata/snapshot-v3.bin"))); err != nil {
		t.Fatal(err)
	}
	tab := m.Rollout()
	all, _ := tab.Binding(rollout.Router, "")
	gate, _ := tab.Binding(rollout.Admission, "")
	bad, _ := tab.Version(policyDigest("bad@1"))
	if len(tab.Versions()) != 4 || len(tab.Bindings()) != 3 || all.CanaryShare != 0.05 || len(all.Canary.Parts) != 2 || !gate.Pinned || bad.Quarantined != 45 {
		t.Errorf("%+v\n%+v", tab.Versions(), tab.Bindings())
	}
	n, _ := tab.State("kv").Get("n")
	if rollout.Number(n) != -7 || tab.State("kv").Len() != 2 || tab.State("gate") == nil || tab.State("gate").Len() != 0 {
		t.Errorf("state %x", n)
	}
	plan, index := m.Plan()
	if index != 49 || len(plan.Pools) != 2 || plan.Pools[1].Desired != 5 {
		t.Errorf("plan %+v at %d", plan, index)
	}
	if sum := m.Checksum(); sum != goldenChecksum3 {
		t.Errorf("checksum %#x", sum)
	}
	// A binary of level 2 refuses it.
	if err := NewAtLevel(2).Restore(bytes.NewReader(readFile(t, "testdata/snapshot-v3.bin"))); !errors.Is(err, ErrUnknownEntry) || errors.Is(err, ErrMalformed) {
		t.Errorf("a binary of level 2: %v", err)
	}
}

func writeFile(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRestoreKeepsTheStateOnError(t *testing.T) {
	h := newHarness2(t)
	h.do(RequestID{1}, RegisterWorker{Worker: testWorker("w", "a")})
	h.do(RequestID{2}, SetRegister{Key: "k"})
	want, good := h.m.Digest(), readFile(t, "testdata/snapshot-v2.bin")
	for cut := range good {
		if err := h.m.Restore(bytes.NewReader(good[:cut])); !errors.Is(err, ErrMalformed) {
			t.Fatalf("first %d of %d bytes: %v, want ErrMalformed", cut, len(good), err)
		}
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x04
		if err := h.m.Restore(bytes.NewReader(bad)); !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnknownEntry) {
			t.Fatalf("bit flipped in byte %d: %v", i, err)
		}
	}
	newer := bytes.Clone(good)
	newer[len(snapshotMagic)-2]++
	if err := h.m.Restore(bytes.NewReader(newer)); !errors.Is(err, ErrUnknownEntry) || errors.Is(err, ErrMalformed) {
		t.Errorf("a newer format: %v, want ErrUnknownEntry", err)
	}
	if err := h.m.Restore(bytes.NewReader(append(good, 0))); !errors.Is(err, ErrMalformed) {
		t.Errorf("a byte too many: %v", err)
	}
	if h.m.Digest() != want {
		t.Error("a failed restore changed the state")
	}
}

func TestSnapshotOfLargeWorkers(t *testing.T) {
	big := make([]fleet.Worker, 80)
	for i := range big {
		big[i] = testWorker(string(rune('a'+i/26))+string(rune('a'+i%26)), "x")
		big[i].Epoch = 1
		big[i].Models = slices.Repeat([]string{strings.Repeat("m", 500)}, 1000)
	}
	m := New()
	m.applied = 1
	m.view.Store(fleet.NewView(1, big))
	back := New()
	if err := back.Restore(bytes.NewReader(snapshotBytes(t, m))); err != nil {
		t.Fatal(err)
	}
	if back.Digest() != m.Digest() {
		t.Error("state differs after restore")
	}
}
