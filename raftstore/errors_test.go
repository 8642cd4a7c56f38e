package raftstore

import (
	"errors"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/raftstore/group"
)

// What is known of a change must survive the way from the leader to who asked:
// above all, no error may turn into one that says that nothing happened.
func TestVerdictsSayWhatIsKnown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		at   error // the leader
		want error // where it was asked for
	}{
		{"done", nil, nil},
		{"ambiguous", ErrAmbiguous, ErrAmbiguous},
		{"unheard of", errors.New("something new"), ErrAmbiguous},
		{"busy", ErrBusy, ErrBusy},
		{"members changed", group.ErrMembersChanged, ErrBusy},
		{"not the leader", ErrNotLeader, ErrNotLeader},
		{"transferring", group.ErrTransferring, ErrNotLeader},
		{"refused", ErrRefused, ErrRefused},
		{"unknown member", ErrUnknownMember, ErrUnknownMember},
		{"ambiguous, then busy", errors.Join(ErrAmbiguous, ErrBusy), ErrAmbiguous},
		{"half done", ErrHalfDone, ErrHalfDone},
		{"half done, then busy", halfDone(ErrBusy), ErrHalfDone},
		{"half done, then refused", halfDone(ErrRefused), ErrHalfDone},
		{"half done, then lost the lead", halfDone(ErrNotLeader), ErrHalfDone},
		{"half done, then ambiguous", halfDone(ErrAmbiguous), ErrHalfDone},
	} {
		got := errorOf(verdictOf(c.at), "detail")
		if c.at == nil {
			got = halfDone(nil)
		}
		if !errors.Is(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		if errors.Is(c.at, group.ErrMembersChanged) && strings.Contains(got.Error(), ErrBusy.Error()) {
			t.Errorf("%s: %v blames something else", c.name, got)
		}
		for _, nothing := range []error{ErrBusy, ErrRefused, ErrNotLeader, ErrUnknownMember} {
			if errors.Is(got, nothing) && !errors.Is(c.want, nothing) {
				t.Errorf("%s: %v says that nothing happened", c.name, got)
			}
		}
	}
}
