package planner

import (
	"errors"
	"testing"
)

// A leader compares the windows of grants with its clock before it proposes them, and
// nobody does when they are applied.
func TestCheckComparesWindows(t *testing.T) {
	m := New()
	m.Windows(func() uint64 { return 1000 })
	apply := func(cmd Command, index uint64) Result {
		entry, err := Encode(RequestID{}, cmd)
		if err != nil {
			t.Fatal(err)
		}
		res, err := m.Apply(index, entry)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	apply(SetFeatureLevel{2}, 1)
	apply(SetQuota{"t", 100}, 2)
	for window, want := range map[uint64]error{0: ErrClock, 998: ErrClock, 999: nil, 1000: nil, 1001: nil, 1002: ErrClock, 1 << 63: ErrClock} {
		entry, _ := Encode(RequestID{}, GrantQuota{"t", "gw", window, 1})
		if err := m.Check(entry); !errors.Is(err, want) {
			t.Errorf("window %d: %v, want %v", window, err, want)
		}
	}
	if res := apply(GrantQuota{"t", "gw", 2000, 1}, 3); res.Granted != 1 {
		t.Errorf("applied: %+v", res)
	}
	if err := (Result{Code: ClockOff}).Err(); !errors.Is(err, ErrClock) {
		t.Error(err)
	}
}
