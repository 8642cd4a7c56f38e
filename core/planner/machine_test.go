package planner

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/fleet"
)

func testWorker(id, incarnation string) fleet.Worker {
	return fleet.Worker{
		ID: fleet.WorkerID(id), Incarnation: incarnation, Role: fleet.RoleBoth, Engine: "cpu",
		Models: []string{"m", "m:lora"}, URL: "http://127.0.0.1:8000", Transfer: "127.0.0.1:9", Compat: "c",
		Capacity: fleet.Capacity{KVBlocks: 10, BlockTokens: 16, MaxContext: 2048, MaxRunning: 8},
		Labels:   []fleet.Label{{Key: "zone", Value: "a"}},
	}
}

// harness proposes and applies in one go.
type harness struct {
	t     testing.TB
	m     *Machine
	index uint64
	log   []loggedEntry
}

type loggedEntry struct {
	index uint64
	entry []byte
}

func (h *harness) do(id RequestID, cmd Command) Result {
	h.t.Helper()
	entry, err := Encode(id, cmd)
	if err != nil {
		h.t.Fatal(err)
	}
	h.index++
	h.log = append(h.log, loggedEntry{h.index, entry})
	res, err := h.m.Apply(h.index, entry)
	if err != nil {
		h.t.Fatal(err)
	}
	return res
}

func newHarness(t testing.TB) *harness { return &harness{t: t, m: New()} }

func TestLifeOfAWorker(t *testing.T) {
	h := newHarness(t)
	no := RequestID{}
	steps := []struct {
		name string
		cmd  Command
		want Result
	}{
		{"drain before any", DrainWorker{"w", 1}, Result{Index: 1, Code: UnknownWorker}},
		{"register", RegisterWorker{Worker: testWorker("w", "a")}, Result{Index: 2, Epoch: 2, Changed: true}},
		{"again, same incarnation", RegisterWorker{Worker: testWorker("w", "a")}, Result{Index: 3, Epoch: 2}},
		{"another, polite", RegisterWorker{Worker: testWorker("w", "b"), IfAbsent: true}, Result{Index: 4, Code: Taken}},
		{"same, polite", RegisterWorker{Worker: testWorker("w", "a"), IfAbsent: true}, Result{Index: 5, Epoch: 2}},
		{"drain", DrainWorker{"w", 2}, Result{Index: 6, Epoch: 2, Changed: true}},
		{"drain twice", DrainWorker{"w", 2}, Result{Index: 7, Epoch: 2}},
		{"supersede", RegisterWorker{Worker: testWorker("w", "b")}, Result{Index: 8, Epoch: 8, Changed: true}},
		{"expire the old", ExpireWorker{"w", 2}, Result{Index: 9, Code: StaleEpoch}},
		{"drain the old", DrainWorker{"w", 2}, Result{Index: 10, Code: StaleEpoch}},
		{"leave of the old", LeaveWorker{"w", 2}, Result{Index: 11, Code: StaleEpoch}},
		{"expire", ExpireWorker{"w", 8}, Result{Index: 12, Epoch: 8, Changed: true}},
		{"leave after expiry", LeaveWorker{"w", 8}, Result{Index: 13, Code: UnknownWorker}},
		{"back, same incarnation", RegisterWorker{Worker: testWorker("w", "b")}, Result{Index: 14, Epoch: 14, Changed: true}},
		{"leave", LeaveWorker{"w", 14}, Result{Index: 15, Epoch: 14, Changed: true}},
	}
	for _, s := range steps {
		before := h.m.View()
		if got := h.do(no, s.cmd); got != s.want {
			t.Errorf("%s: got %+v, want %+v", s.name, got, s.want)
		}
		if changed := h.m.View() != before; changed != s.want.Changed {
			t.Errorf("%s: view published: %v, state changed: %v", s.name, changed, s.want.Changed)
		}
	}
}

func TestDrainingSurvivesRegisteringAgain(t *testing.T) {
	h := newHarness(t)
	epoch := h.do(RequestID{}, RegisterWorker{Worker: testWorker("w", "a")}).Epoch
	draining := testWorker("w", "a")
	draining.Draining = true
	if res := h.do(RequestID{}, RegisterWorker{Worker: draining}); res.Epoch != epoch || !res.Changed {
		t.Errorf("registering as draining: %+v", res)
	}
	h.do(RequestID{}, RegisterWorker{Worker: testWorker("w", "a")})
	if !h.m.View().Workers[0].Draining {
		t.Error("registering again ended the drain")
	}
}

func TestRepeatedRequestHasOneEffect(t *testing.T) {
	h := newHarness(t)
	id := RequestID{1}
	first := h.do(id, RegisterWorker{Worker: testWorker("w", "a")})
	h.do(RequestID{}, LeaveWorker{"w", first.Epoch})
	again := h.do(id, RegisterWorker{Worker: testWorker("w", "a")})
	if again != first || h.m.View().Find("w") >= 0 {
		t.Errorf("repetition got %+v and %d workers, want %+v and none", again, len(h.m.View().Workers), first)
	}
	if h.m.Applied() != h.index {
		t.Errorf("applied %d of %d", h.m.Applied(), h.index)
	}
}

func TestWindowForgetsTheOldest(t *testing.T) {
	h := newHarness(t)
	id := func(i int) RequestID { return RequestID{1, byte(i), byte(i >> 8)} }
	for i := range windowSize {
		h.do(id(i), DrainWorker{"none", 1})
	}
	if res := h.do(id(0), DrainWorker{"none", 1}); res.Index != 1 {
		t.Fatalf("the oldest of a full window was forgotten: %+v", res)
	}
	h.do(id(windowSize), DrainWorker{"none", 1})
	if res := h.do(id(0), DrainWorker{"none", 1}); res.Index != h.index {
		t.Errorf("an id beyond the window was remembered: %+v", res)
	}
	if n := len(h.m.seen.byID); n != windowSize {
		t.Errorf("%d ids remembered, want %d", n, windowSize)
	}
}

func TestClusterAndLevel(t *testing.T) {
	h := newHarness(t)
	for _, s := range []struct {
		cmd  Command
		want Code
	}{
		{InitCluster{"a"}, OK},
		{InitCluster{"a"}, OK},
		{InitCluster{"b"}, Taken},
		{SetFeatureLevel{1}, OK},
		{SetFeatureLevel{1}, OK},
		{SetFeatureLevel{0}, Refused},
	} {
		if got := h.do(RequestID{}, s.cmd).Code; got != s.want {
			t.Errorf("%+v: %v, want %v", s.cmd, got, s.want)
		}
	}
	if h.m.ClusterID() != "a" || h.m.FeatureLevel() != 1 {
		t.Errorf("cluster %q level %d", h.m.ClusterID(), h.m.FeatureLevel())
	}
}

func TestFleetIsBounded(t *testing.T) {
	m := New()
	workers := make([]fleet.Worker, MaxWorkers)
	for i := range workers {
		workers[i] = fleet.Worker{ID: fleet.WorkerID(fmt.Sprintf("w%06d", i)), Epoch: 1, Incarnation: "a"}
	}
	m.applied = 1
	m.view.Store(fleet.NewView(1, workers))
	entry, err := Encode(RequestID{}, RegisterWorker{Worker: testWorker("new", "a")})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := m.Apply(2, entry); err != nil || res.Code != Full {
		t.Errorf("Apply = %+v, %v; want Full", res, err)
	}
}

func TestUnknownEntries(t *testing.T) {
	m := New()
	header := func(version, k byte) []byte {
		return append([]byte{version, k}, make([]byte, len(RequestID{}))...)
	}
	for _, e := range [][]byte{header(1, 0), header(1, 99), header(2, byte(kindLeaveWorker)), header(2, 0x90)} {
		if _, err := m.Apply(1, e); !errors.Is(err, ErrUnknownEntry) {
			t.Errorf("version %d type %d: %v, want ErrUnknownEntry", e[0], e[1], err)
		}
	}
	if m.Applied() != 0 {
		t.Fatalf("a refused entry counts as applied: %d", m.Applied())
	}
	if res, err := m.Apply(1, append(header(1, 0x90), 0xff, 0xff)); err != nil || res.Code != Ignored {
		t.Errorf("ignorable entry: %+v, %v", res, err)
	}
	if _, err := m.Apply(1, header(1, 0x90)); !errors.Is(err, ErrMalformed) {
		t.Errorf("an index applied twice: %v", err)
	}
}

func TestEncodeRefuses(t *testing.T) {
	bad := testWorker("", "")
	bad.Models = nil
	for _, cmd := range []Command{
		RegisterWorker{Worker: bad},
		RegisterWorker{Worker: testWorker("\xff", "a")},
		ExpireWorker{"w", 0},
		LeaveWorker{"", 1},
		InitCluster{},
		SetFeatureLevel{MaxFeatureLevel + 1},
	} {
		if _, err := Encode(RequestID{}, cmd); !errors.Is(err, ErrInvalid) {
			t.Errorf("Encode(%+v) = %v, want ErrInvalid", cmd, err)
		}
	}
}

// drawCommand draws from few names, so that commands meet.
func drawCommand(t *rapid.T) Command {
	id := fleet.WorkerID(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "id"))
	epoch := fleet.Epoch(rapid.Uint64Range(1, 40).Draw(t, "epoch"))
	switch rapid.IntRange(0, 18).Draw(t, "kind") {
	case 0, 1:
		w := testWorker(string(id), rapid.SampledFrom([]string{"x", "y"}).Draw(t, "incarnation"))
		w.Draining = rapid.Bool().Draw(t, "draining")
		return RegisterWorker{Worker: w, IfAbsent: rapid.Bool().Draw(t, "polite")}
	case 2:
		return ExpireWorker{id, epoch}
	case 3:
		return LeaveWorker{id, epoch}
	case 4:
		return DrainWorker{id, epoch}
	case 5:
		return InitCluster{rapid.SampledFrom([]string{"c1", "c2"}).Draw(t, "cluster")}
	case 6, 7:
		return SetFeatureLevel{rapid.Uint32Range(0, MaxFeatureLevel).Draw(t, "level")}
	case 8, 9, 10, 11, 12:
		return drawCommand2(t)
	default:
		return drawCommand3(t)
	}
}

func drawRequestID(t *rapid.T) RequestID {
	return RequestID{rapid.ByteRange(0, 12).Draw(t, "request")}
}

func snapshotBytes(t interface{ Fatal(...any) }, m *Machine) []byte {
	var buf bytes.Buffer
	n, err := m.Snapshot().WriteTo(&buf)
	if err != nil || n != int64(buf.Len()) {
		t.Fatal("WriteTo:", n, err)
	}
	return buf.Bytes()
}

// Same log, same bytes: on a second machine, and on one that went through
// snapshot and restore somewhere in the middle.
func TestSameLogSameBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "entries")
		cut := rapid.IntRange(0, n).Draw(t, "cut")
		straight, other, restored := New(), New(), New()
		for i := range n {
			index := uint64(i + 1)
			entry, err := Encode(drawRequestID(t), drawCommand(t))
			if err != nil {
				t.Fatal(err)
			}
			if i == cut {
				if err := restored.Restore(bytes.NewReader(snapshotBytes(t, straight))); err != nil {
					t.Fatal(err)
				}
			}
			want, err := straight.Apply(index, entry)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := other.Apply(index, entry); err != nil || got != want {
				t.Fatalf("second machine: %+v, %v; first %+v", got, err, want)
			}
			straight.Checksum() // what it remembers must not outlive a change
			if i < cut {
				continue
			}
			if got, err := restored.Apply(index, entry); err != nil || got != want {
				t.Fatalf("restored machine: %+v, %v; first %+v", got, err, want)
			}
		}
		if cut == n {
			if err := restored.Restore(bytes.NewReader(snapshotBytes(t, straight))); err != nil {
				t.Fatal(err)
			}
		}
		want := snapshotBytes(t, straight)
		if !bytes.Equal(want, snapshotBytes(t, other)) || !bytes.Equal(want, snapshotBytes(t, restored)) {
			t.Fatal("equal logs, different bytes")
		}
		if straight.Digest() != restored.Digest() {
			t.Fatal("equal logs, different digests")
		}
		if sum := straight.Checksum(); sum != other.Checksum() || sum != restored.Checksum() || sum != straight.Checksum() {
			t.Fatal("equal logs, different checksums")
		}
		if diff := cmp.Diff(straight.View().Workers, restored.View().Workers, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	})
}

// States that differ have different checksums, whatever differs.
func TestChecksumSeesWhatDigestSees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, index := New(), uint64(0)
		seen := map[uint64]Digest{}
		for range rapid.IntRange(1, 40).Draw(t, "entries") {
			entry, err := Encode(drawRequestID(t), drawCommand(t))
			if err != nil {
				t.Fatal(err)
			}
			index++
			if _, err := m.Apply(index, entry); err != nil {
				t.Fatal(err)
			}
			m.applied = 1 << 40 // or every entry would make a difference
			sum, digest := m.Checksum(), m.Digest()
			m.applied = index
			if was, ok := seen[sum]; ok && was != digest {
				t.Fatal("one checksum of two states")
			}
			for other, was := range seen {
				if was == digest && other != sum {
					t.Fatal("two checksums of one state")
				}
			}
			seen[sum] = digest
		}
	})
}

// model is the fleet as one would write it down without care for replication.
type model map[fleet.WorkerID]fleet.Worker

func (m model) apply(index uint64, cmd Command) {
	end := func(id fleet.WorkerID, e fleet.Epoch) {
		if m[id].Epoch == e {
			delete(m, id)
		}
	}
	switch c := cmd.(type) {
	case RegisterWorker:
		old, exists := m[c.Worker.ID]
		same := exists && old.Incarnation == c.Worker.Incarnation
		switch {
		case same:
			old.Draining = old.Draining || c.Worker.Draining
			m[c.Worker.ID] = old
		case !exists || !c.IfAbsent:
			w := c.Worker
			w.Epoch = fleet.Epoch(index)
			m[w.ID] = w
		}
	case ExpireWorker:
		end(c.ID, c.Epoch)
	case LeaveWorker:
		end(c.ID, c.Epoch)
	case DrainWorker:
		if w, ok := m[c.ID]; ok && w.Epoch == c.Epoch {
			w.Draining = true
			m[c.ID] = w
		}
	}
}

func TestMachineMatchesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, plain, seen, index := New(), model{}, map[RequestID]bool{}, uint64(0)
		epochs := map[fleet.Epoch]bool{}
		t.Repeat(map[string]func(*rapid.T){
			"apply": func(t *rapid.T) {
				id, cmd := drawRequestID(t), drawCommand(t)
				entry, err := Encode(id, cmd)
				if err != nil {
					t.Fatal(err)
				}
				index += rapid.Uint64Range(1, 3).Draw(t, "gap")
				if _, err := m.Apply(index, entry); err != nil {
					t.Fatal(err)
				}
				if seen[id] && id != (RequestID{}) {
					return
				}
				seen[id] = true
				plain.apply(index, cmd)
			},
			"": func(t *rapid.T) {
				v := m.View()
				if len(v.Workers) != len(plain) {
					t.Fatalf("%d workers, model has %d", len(v.Workers), len(plain))
				}
				for _, w := range v.Workers {
					if diff := cmp.Diff(plain[w.ID], w); diff != "" {
						t.Fatal(diff)
					}
					epochs[w.Epoch] = true
				}
				if !slices.IsSortedFunc(v.Workers, func(a, b fleet.Worker) int { return bytes.Compare([]byte(a.ID), []byte(b.ID)) }) {
					t.Fatal("workers are not sorted")
				}
			},
		})
	})
}

func TestOldViewIsNotTouched(t *testing.T) {
	h := newHarness(t)
	h.do(RequestID{}, RegisterWorker{Worker: testWorker("a", "x")})
	h.do(RequestID{}, RegisterWorker{Worker: testWorker("b", "x")})
	old := h.m.View()
	before := slices.Clone(old.Workers)
	h.do(RequestID{}, DrainWorker{"a", 1})
	h.do(RequestID{}, LeaveWorker{"b", 2})
	h.do(RequestID{}, RegisterWorker{Worker: testWorker("0", "x")})
	if diff := cmp.Diff(before, old.Workers); diff != "" {
		t.Error(diff)
	}
}
