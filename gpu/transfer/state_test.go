package transfer

import (
	"slices"
	"testing"
)

func TestStates(t *testing.T) {
	steps := map[State][]State{
		Offered:   {Reserved, Aborting},
		Reserved:  {Ready, Moving, Verifying, Aborting},
		Ready:     {Moving, Verifying, Aborting},
		Moving:    {Ready, Verifying, Aborting},
		Verifying: {Committed, Aborting},
		Committed: {Released},
		Aborting:  {Fenced},
		Fenced:    {Released},
		Released:  nil,
	}
	for from := Offered; from <= Released; from++ {
		for to := Offered; to <= Released; to++ {
			if got, want := from.may(to), slices.Contains(steps[from], to); got != want {
				t.Errorf("%v to %v: %v, want %v", from, to, got, want)
			}
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a step that does not exist was taken")
		}
	}()
	s := Released
	s.to(Moving)
}

func TestReasonsHaveCodes(t *testing.T) {
	for i, r := range reasons[1:] {
		if r.code() != byte(i+1) || reasonOf(r.code()) != r {
			t.Errorf("%s: code %d", r, r.code())
		}
	}
	for _, code := range []byte{0, byte(len(reasons)), 255} {
		if got := reasonOf(code); got != ReasonPeerAbort {
			t.Errorf("code %d is %s", code, got)
		}
	}
}

func TestConfig(t *testing.T) {
	var c Config
	if err := c.Validate(); err == nil {
		t.Error("an empty configuration is valid")
	}
}
