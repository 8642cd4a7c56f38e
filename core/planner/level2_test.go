package planner

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/core/quota"
)

func newHarness2(t testing.TB) *harness {
	h := newHarness(t)
	h.do(RequestID{}, SetFeatureLevel{2})
	return h
}

func version(v uint64) *uint64 { return &v }

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
		{"create only", SetRegister{Key: "k", Value: []byte("b"), IfVersion: version(0)}, Result{Code: Conflict, Version: 2}},
		{"swap", SetRegister{Key: "k", Value: []byte("b"), IfVersion: version(2)}, Result{Version: 4, Changed: true}},
		{"swap the old", SetRegister{Key: "k", Value: []byte("c"), IfVersion: version(2)}, Result{Code: Conflict, Version: 4}},
		{"swap nothing", SetRegister{Key: "x", Value: []byte("c"), IfVersion: version(2)}, Result{Code: Conflict}},
		{"same value", SetRegister{Key: "k", Value: []byte("b")}, Result{Version: 7, Changed: true}},
		{"delete the old", DeleteRegister{Key: "k", IfVersion: version(4)}, Result{Code: Conflict, Version: 7}},
		{"delete nothing", DeleteRegister{Key: "x"}, Result{}},
		{"delete", DeleteRegister{Key: "k", IfVersion: version(7)}, Result{Changed: true}},
		{"create anew", SetRegister{Key: "k", IfVersion: version(0)}, Result{Version: 11, Changed: true}},
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
