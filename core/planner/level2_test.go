package planner

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/quota"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/core/wire/control"
	"github.com/yardmaster/yardmaster/core/wire/section"
)

func newHarness2(t testing.TB) *harness {
	h := newHarness(t)
	h.do(RequestID{}, SetFeatureLevel{2})
	return h
}

type step struct {
	name string
	cmd  Command
	want Result
}

// walk applies steps, whose entries begin at index 2.
func (h *harness) walk(steps []step) {
	h.t.Helper()
	for _, s := range steps {
		before := h.m.Digest()
		got := h.do(RequestID{}, s.cmd)
		want := s.want
		want.Index = h.index
		if got != want {
			h.t.Errorf("%s: got %+v, want %+v", s.name, got, want)
		}
		h.m.applied-- // the digest but for the index
		if changed := h.m.Digest() != before; changed != s.want.Changed {
			h.t.Errorf("%s: state changed: %v", s.name, changed)
		}
		h.m.applied++
	}
}

func TestRegisters(t *testing.T) {
	h := newHarness2(t)
	h.walk([]step{
		{"create", SetRegister{Key: "k", Value: []byte("a")}, Result{Version: 2, Changed: true}},
		{"create only", SetRegister{Key: "k", Value: []byte("b"), IfVersion: new(uint64(0))}, Result{Code: Conflict, Version: 2}},
		{"swap", SetRegister{Key: "k", Value: []byte("b"), IfVersion: new(uint64(2))}, Result{Version: 4, Changed: true}},
		{"swap the old", SetRegister{Key: "k", Value: []byte("c"), IfVersion: new(uint64(2))}, Result{Code: Conflict, Version: 4}},
		{"swap nothing", SetRegister{Key: "x", Value: []byte("c"), IfVersion: new(uint64(2))}, Result{Code: Conflict}},
		{"same value", SetRegister{Key: "k", Value: []byte("b")}, Result{Version: 7, Changed: true}},
		{"delete the old", DeleteRegister{Key: "k", IfVersion: new(uint64(4))}, Result{Code: Conflict, Version: 7}},
		{"delete nothing", DeleteRegister{Key: "x"}, Result{}},
		{"delete", DeleteRegister{Key: "k", IfVersion: new(uint64(7))}, Result{Changed: true}},
		{"create anew", SetRegister{Key: "k", IfVersion: new(uint64(0))}, Result{Version: 11, Changed: true}},
		{"another", SetRegister{Key: "j", Value: []byte{0}}, Result{Version: 12, Changed: true}},
	})
	want := []Register{{Key: "j", Value: []byte{0}, Version: 12}, {Key: "k", Version: 11}}
	if diff := cmp.Diff(want, h.m.Registers()); diff != "" {
		t.Error(diff)
	}
	if r, ok := h.m.Register("j"); !ok || r.Version != 12 {
		t.Errorf("Register(j) = %+v, %v", r, ok)
	}
	if _, ok := h.m.Register("x"); ok {
		t.Error("x is a register")
	}
}

func TestQuotas(t *testing.T) {
	h := newHarness2(t)
	h.walk([]step{
		{"grant of none", GrantQuota{"t", "g1", 5, 10}, Result{Code: UnknownTenant}},
		{"set", SetQuota{"t", 100}, Result{Changed: true}},
		{"set again", SetQuota{"t", 100}, Result{}},
		{"grant", GrantQuota{"t", "g1", 5, 60}, Result{Granted: 60, Changed: true}},
		{"the rest", GrantQuota{"t", "g2", 5, 60}, Result{Granted: 40, Changed: true}},
		{"nothing left", GrantQuota{"t", "g2", 5, 1}, Result{}},
		{"an old window", GrantQuota{"t", "g2", 4, 1}, Result{Code: StaleWindow}},
		{"return more", ReturnQuota{"t", "g2", 5, 50}, Result{Granted: 40, Changed: true}},
		{"return to an old one", ReturnQuota{"t", "g2", 4, 50}, Result{Code: StaleWindow}},
		{"end", EndHolder{"g1"}, Result{Granted: 60, Changed: true}},
		{"end again", EndHolder{"g1"}, Result{}},
		{"a new window", GrantQuota{"t", "g2", 6, 200}, Result{Granted: 100, Changed: true}},
		{"lower", SetQuota{"t", 10}, Result{Changed: true}},
		{"drop", DropQuota{"t"}, Result{Changed: true}},
		{"drop again", DropQuota{"t"}, Result{}},
		{"zero", SetQuota{"t", 0}, Result{Changed: true}},
		{"none of zero", GrantQuota{"t", "g2", 0, 200}, Result{}},
	})
	if q, ok := h.m.Quota("t"); !ok || q.Limit != 0 || q.Granted != 0 {
		t.Errorf("Quota = %+v, %v", q, ok)
	}
}

func member(id string) Member {
	return Member{ID: id, Role: MemberPlanner, PeerAddr: "127.0.0.1:8092", AdminAddr: "127.0.0.1:8091", Version: "v1", MaxLevel: 2, Incarnation: "i"}
}

func TestMembers(t *testing.T) {
	h := newHarness2(t)
	again := member("a")
	again.Incarnation = "j"
	h.walk([]step{
		{"put", PutMember{member("b")}, Result{Version: 2, Changed: true}},
		{"put another", PutMember{member("a")}, Result{Version: 3, Changed: true}},
		{"say it again", PutMember{member("a")}, Result{Version: 3}},
		{"restart", PutMember{again}, Result{Version: 5, Changed: true}},
		{"drop the old", DropMember{"a", "i"}, Result{Code: Conflict, Version: 5}},
		{"drop nobody", DropMember{"c", ""}, Result{}},
		{"drop", DropMember{"b", ""}, Result{Changed: true}},
	})
	again.Index = 5
	if diff := cmp.Diff([]Member{again}, h.m.Members()); diff != "" {
		t.Error(diff)
	}
	if got, ok := h.m.Member("a"); !ok || got != again {
		t.Errorf("Member(a) = %+v, %v", got, ok)
	}
}

func TestMemberValidateNamesEveryFault(t *testing.T) {
	good := member("gw-1.eu")
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	bad := Member{ID: "A b", Role: 7, PeerAddr: strings.Repeat("x", 513), Version: strings.Repeat("x", 129)}
	for _, want := range []string{"not a node id", "neither planner nor gateway", "address", "version", "level is missing"} {
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	for _, id := range []string{"", "-a", ".a", "a_b", strings.Repeat("a", 64)} {
		if m := member(id); m.Validate() == nil {
			t.Errorf("%q is a member id", id)
		}
	}
}

func TestLevelGates(t *testing.T) {
	m := New()
	set := SetRegister{Key: "k"}
	if _, err := m.Encode(RequestID{}, set); !errors.Is(err, ErrLevel) || errors.Is(err, ErrInvalid) {
		t.Errorf("Encode at level 0: %v", err)
	}
	entry, err := Encode(RequestID{}, set)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Check(entry); !errors.Is(err, ErrLevel) {
		t.Errorf("Check at level 0: %v", err)
	}
	if res, err := m.Apply(1, entry); err != nil || res.Code != Refused || len(m.Registers()) != 0 {
		t.Errorf("Apply at level 0: %+v, %v", res, err)
	}
	raise, err := m.Encode(RequestID{}, SetFeatureLevel{2})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := m.Apply(2, raise); err != nil || !res.Changed {
		t.Fatal(res, err)
	}
	if _, err := m.Encode(RequestID{}, set); err != nil {
		t.Error(err)
	}
	if err := m.Check(entry); err != nil {
		t.Error(err)
	}
	for _, cmd := range goldenCommands3() { // of level 3, at level 2
		if _, raises := cmd.(SetFeatureLevel); raises {
			continue
		}
		if _, err := m.Encode(RequestID{}, cmd); !errors.Is(err, ErrLevel) || !strings.Contains(err.Error(), "needs feature level 3") {
			t.Errorf("Encode(%T) at level 2: %v", cmd, err)
		}
		if res := m.execute(3, cmd); res != (Result{Code: Refused}) {
			t.Errorf("Apply of %T at level 2: %+v", cmd, res)
		}
	}
	if m.Rollout().Index() != 0 {
		t.Error("applied what was refused")
	}
}

// An old binary stops at the first thing it cannot read, with a sentence that
// says what to do.
func TestOldBinaryRefuses(t *testing.T) {
	old := NewAtLevel(1)
	entry, err := Encode(RequestID{}, SetRegister{Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	raise, err := Encode(RequestID{}, SetFeatureLevel{2})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range [][]byte{entry, raise} {
		if _, err := old.Apply(1, e); !errors.Is(err, ErrUnknownEntry) || !strings.Contains(err.Error(), "upgrade this node") {
			t.Errorf("Apply: %v", err)
		}
	}
	h := newHarness2(t)
	h.do(RequestID{}, SetRegister{Key: "k"})
	if err := old.Restore(bytes.NewReader(snapshotBytes(t, h.m))); !errors.Is(err, ErrUnknownEntry) || errors.Is(err, ErrMalformed) {
		t.Errorf("Restore: %v", err)
	}
	if old.Applied() != 0 {
		t.Error("applied what it refused")
	}
}

// A rolling upgrade: an old and a new binary share a log at the old one's level and
// take each other's snapshots; the old one stops where the level rises, is replaced
// by a new one, and that one goes on as if it had always been there.
func TestRollingUpgrade(t *testing.T) {
	for from := uint32(1); from < MaxFeatureLevel; from++ {
		t.Run(fmt.Sprintf("from level %d", from), func(t *testing.T) { upgrade(t, from) })
	}
}

func upgrade(t *testing.T, from uint32) {
	rapid.Check(t, func(t *rapid.T) {
		old, young, index := NewAtLevel(from), New(), uint64(0)
		both := func(cmd Command) {
			entry, err := young.Encode(drawRequestID(t), cmd)
			if err != nil {
				return // above the level
			}
			index++
			want, err := young.Apply(index, entry)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := old.Apply(index, entry); err != nil || got != want {
				t.Fatalf("old %+v, %v; young %+v", got, err, want)
			}
		}
		both(SetFeatureLevel{rapid.Uint32Range(0, from).Draw(t, "level at first")})
		for range rapid.IntRange(0, 20).Draw(t, "entries of the old level") {
			cmd := drawCommand(t)
			if c, ok := cmd.(SetFeatureLevel); ok && c.Level > from {
				continue
			}
			both(cmd)
		}
		image := snapshotBytes(t, old)
		if !bytes.Equal(image, snapshotBytes(t, young)) {
			t.Fatal("an old and a new binary write different bytes at the old one's level")
		}
		if err := NewAtLevel(from).Restore(bytes.NewReader(snapshotBytes(t, young))); err != nil {
			t.Fatal(err)
		}
		raise, err := young.Encode(RequestID{0xff}, SetFeatureLevel{from + 1})
		if err != nil {
			t.Fatal(err)
		}
		index++
		if _, err := old.Apply(index, raise); !errors.Is(err, ErrUnknownEntry) {
			t.Fatalf("the old binary raises the level: %v", err)
		}
		if old = New(); old.Restore(bytes.NewReader(image)) != nil {
			t.Fatal("the upgraded node does not restore its own snapshot")
		}
		for _, m := range []*Machine{old, young} {
			if res, err := m.Apply(index, raise); err != nil || !res.Changed {
				t.Fatal(res, err)
			}
		}
		for range rapid.IntRange(0, 20).Draw(t, "entries of the new level") {
			both(drawCommand(t))
		}
		if !bytes.Equal(snapshotBytes(t, old), snapshotBytes(t, young)) || old.Checksum() != young.Checksum() {
			t.Fatal("the upgraded node parted from the others")
		}
	})
}

func TestResultSurvivesTheWire(t *testing.T) {
	for _, r := range []Result{{}, {Index: 1 << 60, Code: Conflict, Epoch: 3, Changed: true, Version: 9, Granted: quota.MaxTokens}, {Code: 200}} {
		if got, err := ParseResult(AppendResult([]byte{}, r)); err != nil || got != r {
			t.Errorf("%+v became %+v, %v", r, got, err)
		}
	}
	if _, err := ParseResult([]byte{0x10, 0x80, 0x02}); !errors.Is(err, ErrMalformed) {
		t.Errorf("code 256: %v", err)
	}
	if err := (Result{Code: 200}).Err(); !errors.Is(err, ErrRefused) {
		t.Errorf("a code of a newer release: %v", err)
	}
}

func TestResultOfAGrantIsRemembered(t *testing.T) {
	h := newHarness2(t)
	h.do(RequestID{}, SetQuota{"t", 100})
	first := h.do(RequestID{1}, GrantQuota{"t", "g", 1, 60})
	back := New()
	if err := back.Restore(bytes.NewReader(snapshotBytes(t, h.m))); err != nil {
		t.Fatal(err)
	}
	h.m = back
	if again := h.do(RequestID{1}, GrantQuota{"t", "g", 1, 60}); again != first || again.Granted != 60 {
		t.Errorf("repetition got %+v, first %+v", again, first)
	}
	if q, _ := h.m.Quota("t"); q.Granted != 60 {
		t.Errorf("granted %d", q.Granted)
	}
}

// What Apply refuses does not depend on Encode, which may change.
func TestApplyKeepsTheBounds(t *testing.T) {
	h := newHarness2(t)
	apply := func(cmd Command) Code {
		t.Helper()
		h.index++
		return h.m.execute(h.index, cmd).Code
	}
	long := strings.Repeat("x", 600)
	for i, cmd := range []Command{
		SetRegister{},
		SetRegister{Key: long},
		SetRegister{Key: "k", Value: make([]byte, MaxRegisterValue+1)},
		DeleteRegister{Key: long},
		SetQuota{"", 1},
		SetQuota{"t", -1},
		SetQuota{"t", quota.MaxTokens + 1},
		GrantQuota{"t", long, 1, 1},
		GrantQuota{"t", "h", 1, -1},
		ReturnQuota{"t", "h", 1, 0},
		PutMember{},
		PutMember{Member{ID: long, Role: 1, MaxLevel: 1}},
		PutMember{Member{ID: "a", Role: 1}},
	} {
		if code := apply(cmd); code != Refused {
			t.Errorf("command %d: %v", i, code)
		}
		if _, err := Encode(RequestID{}, cmd); !errors.Is(err, ErrInvalid) {
			t.Errorf("Encode of command %d: %v", i, err)
		}
	}
	for i := range MaxRegisters {
		if code := apply(SetRegister{Key: strconv.Itoa(i)}); code != OK {
			t.Fatal(code)
		}
	}
	for i := range MaxMembers {
		if code := apply(PutMember{member(strconv.Itoa(i))}); code != OK {
			t.Fatal(code)
		}
	}
	if code := apply(SetRegister{Key: "one more"}); code != Full {
		t.Errorf("one register more: %v", code)
	}
	if code := apply(PutMember{member("more")}); code != Full {
		t.Errorf("one member more: %v", code)
	}
	if code := apply(SetRegister{Key: "7"}); code != OK {
		t.Errorf("one of the registers: %v", code)
	}
}

// The largest state there can be is written and read.
func TestSnapshotOfTheLargestState(t *testing.T) {
	h := newHarness2(t)
	value := bytes.Repeat([]byte("v"), MaxRegisterValue)
	for i := range 100 { // of 1,024: 6 MB are several sections
		h.index++
		h.m.execute(h.index, SetRegister{Key: strconv.Itoa(i), Value: value})
	}
	h.m.execute(h.index, SetQuota{"t", quota.MaxTokens})
	one := quota.Tenant{Limit: quota.MaxTokens}
	for i := range quota.MaxGrants {
		one.Grants = append(one.Grants, quota.Grant{Holder: fmt.Sprintf("%0128d", i), Tokens: 1})
	}
	l, ok := quota.Ledger{}.Load("t", one)
	if !ok {
		t.Fatal("not a ledger")
	}
	h.m.quotas.Store(&l)
	h.m.applied = h.index
	back := New()
	if err := back.Restore(bytes.NewReader(snapshotBytes(t, h.m))); err != nil {
		t.Fatal(err)
	}
	if back.Digest() != h.m.Digest() {
		t.Error("state differs after restore")
	}
}

// Snapshots read back must be states that Apply could have made.
func TestRestoreRefusesWhatApplyCannotMake(t *testing.T) {
	for name, edit := range map[string]func(*Machine){
		"a register of the future": func(m *Machine) {
			publish(&m.registers, m.registers.Load().With("k", newRegister("k", nil, 99)))
		},
		"a register never written": func(m *Machine) { publish(&m.registers, m.registers.Load().With("k", newRegister("k", nil, 0))) },
		"a member of no role": func(m *Machine) {
			publish(&m.members, m.members.Load().With("k", &Member{ID: "k", MaxLevel: 1, Index: 1}))
		},
		"registers at level 1": func(m *Machine) { m.meta.Store(&meta{featureLevel: 1}) },
		"a quota of nobody": func(m *Machine) {
			l, _ := m.quotas.Load().Set("", 5)
			m.quotas.Store(&l)
		},
	} {
		h := newHarness2(t)
		h.do(RequestID{}, SetRegister{Key: "a"})
		edit(h.m)
		if err := New().Restore(bytes.NewReader(snapshotBytes(t, h.m))); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	h := newHarness2(t)
	h.m.meta.Store(&meta{featureLevel: MaxFeatureLevel + 1})
	if err := New().Restore(bytes.NewReader(snapshotBytes(t, h.m))); !errors.Is(err, ErrUnknownEntry) || errors.Is(err, ErrMalformed) {
		t.Errorf("a level of the future: %v", err)
	}
}

// A section that this binary does not know is refused with what to do, unless it
// is marked as one to skip.
func TestSectionsOfNewerReleases(t *testing.T) {
	h := newHarness2(t)
	h.do(RequestID{}, SetRegister{Key: "k"})
	write := func(kind, version byte) []byte {
		var buf bytes.Buffer
		w := section.NewWriter(&buf, snapshotMagic)
		raw := func(kind, version byte, m proto.Message) {
			w.Write(kind, version, func(b []byte) []byte {
				b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, m)
				if err != nil {
					t.Fatal(err)
				}
				return b
			})
		}
		raw(byte(sectionHead), 2, &control.HeadSection{FeatureLevel: 2, Applied: 2})
		raw(kind, version, &control.RegistersSection{})
		raw(byte(sectionEnd), 1, &control.EndSection{Sections: 2})
		return buf.Bytes()
	}
	for _, tt := range []struct {
		kind, version byte
		ok            bool
	}{
		{byte(sectionRegisters), 1, true},
		{byte(sectionRegisters), 2, false},
		{byte(sectionRegisters), 0, false},
		{byte(sectionWindow), 3, false},
		{0x40, 1, false},
		{0x89, 9, true},
	} {
		before := h.m.Digest()
		err := h.m.Restore(bytes.NewReader(write(tt.kind, tt.version)))
		switch {
		case tt.ok && err != nil:
			t.Errorf("section %d version %d: %v", tt.kind, tt.version, err)
		case tt.ok:
		case !errors.Is(err, ErrUnknownEntry) || errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), "upgrade this node"):
			t.Errorf("section %d version %d: %v, want ErrUnknownEntry", tt.kind, tt.version, err)
		case h.m.Digest() != before:
			t.Errorf("section %d version %d: refused, and the state changed", tt.kind, tt.version)
		}
	}
}

// What is encoded is read back as it was.
func TestCommandsSurviveTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id, cmd := drawRequestID(t), drawCommand(t)
		entry, err := Encode(id, cmd)
		if err != nil {
			t.Fatal(err)
		}
		gotID, got, err := Decode(entry)
		if err != nil || gotID != id {
			t.Fatal(gotID, err)
		}
		if diff := cmp.Diff(cmd, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// drawCommand2 draws commands of feature level 2.
func drawCommand2(t *rapid.T) Command {
	key := rapid.SampledFrom([]string{"k1", "k2", "k3"}).Draw(t, "key")
	var ifVersion *uint64
	if rapid.Bool().Draw(t, "if") {
		ifVersion = new(rapid.Uint64Range(0, 20).Draw(t, "version"))
	}
	tenant := rapid.SampledFrom([]string{"t1", "t2"}).Draw(t, "tenant")
	holder := rapid.SampledFrom([]string{"g1", "g2"}).Draw(t, "holder")
	window := rapid.Uint64Range(0, 3).Draw(t, "window")
	tokens := unit.Tokens(rapid.IntRange(1, 50).Draw(t, "tokens"))
	switch rapid.IntRange(0, 8).Draw(t, "kind 2") {
	case 0:
		return DeleteRegister{Key: key, IfVersion: ifVersion}
	case 1:
		return SetQuota{tenant, tokens}
	case 2:
		return DropQuota{tenant}
	case 3:
		return GrantQuota{tenant, holder, window, tokens}
	case 4:
		return ReturnQuota{tenant, holder, window, tokens}
	case 5:
		return EndHolder{holder}
	case 6:
		m := member(key)
		m.Incarnation = holder
		return PutMember{m}
	case 7:
		return DropMember{key, rapid.SampledFrom([]string{"", "g1"}).Draw(t, "incarnation")}
	default:
		return SetRegister{Key: key, Value: []byte(holder), IfVersion: ifVersion}
	}
}

// Registers against a plain map, and members likewise: what a reader holds does
// not change under its hands.
func TestRegistersMatchModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, index := New(), uint64(1)
		m.meta.Store(&meta{featureLevel: 2})
		plain := map[string]Register{}
		held, copied := m.Registers(), m.Registers()
		t.Repeat(map[string]func(*rapid.T){
			"apply": func(t *rapid.T) {
				cmd := drawCommand2(t)
				index++
				res := m.execute(index, cmd)
				var key string
				var want *uint64
				switch c := cmd.(type) {
				case SetRegister:
					key, want = c.Key, c.IfVersion
				case DeleteRegister:
					key, want = c.Key, c.IfVersion
				default:
					return
				}
				fits := want == nil || *want == plain[key].Version
				if fits != (res.Code == OK) || (!fits && res.Version != plain[key].Version) {
					t.Fatalf("%+v on %+v: %+v", cmd, plain[key], res)
				}
				if c, ok := cmd.(SetRegister); ok && fits {
					plain[key] = Register{Key: key, Value: c.Value, Version: index}
				} else if fits {
					delete(plain, key)
				}
			},
			"hold": func(*rapid.T) { held, copied = m.Registers(), slices.Clone(m.Registers()) },
			"": func(t *rapid.T) {
				if diff := cmp.Diff(copied, held); diff != "" {
					t.Fatal(diff)
				}
				all := m.Registers()
				if len(all) != len(plain) {
					t.Fatalf("%d registers, want %d", len(all), len(plain))
				}
				for _, r := range all {
					if diff := cmp.Diff(plain[r.Key], r); diff != "" {
						t.Fatal(diff)
					}
				}
			},
		})
	})
}

// full is a machine with all registers there can be, of the largest size, and a
// full window.
func full() *Machine {
	m := New()
	m.meta.Store(&meta{featureLevel: 2})
	value := make([]byte, MaxRegisterValue)
	for i := range MaxRegisters {
		m.execute(uint64(i+1), SetRegister{Key: strconv.Itoa(i), Value: value})
	}
	m.applied = MaxRegisters
	for i := range 2 * windowSize {
		m.seen.add(RequestID{1, byte(i), byte(i >> 8)}, Result{Index: uint64(i)})
	}
	return m
}

// Taking a snapshot does not depend on the size of the values; it is what Apply
// waits for.
func BenchmarkSnapshot(b *testing.B) {
	m := full()
	b.ReportAllocs()
	for b.Loop() {
		m.Snapshot()
	}
}

// The digest of the largest registers, which is computed beside Apply.
func BenchmarkDigest(b *testing.B) {
	s := full().Snapshot()
	b.SetBytes(MaxRegisters * MaxRegisterValue)
	for b.Loop() {
		s.Digest()
	}
}

// The checksum of the same, which is computed between two entries.
func BenchmarkChecksum(b *testing.B) {
	m := full()
	b.ReportAllocs()
	for b.Loop() {
		m.Checksum()
	}
}

// A write among 1,024 registers copies pointers, whatever the values' size.
func BenchmarkSetRegister(b *testing.B) {
	m := full()
	cmd := SetRegister{Key: "7", Value: make([]byte, MaxRegisterValue)}
	b.ReportAllocs()
	index := uint64(MaxRegisters)
	for b.Loop() {
		index++
		m.execute(index, cmd)
	}
}
