package group

import (
	"testing"
	"testing/synctest"
	"time"
)

// A leader sends entries before they are on its own disk, and counts none of them
// as committed before they are there.
func TestNothingIsCommittedBeforeItIsOnTheLeadersDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 3, nil)
		defer closeAll(t, members)
		first := leader(t, members, 10*time.Second)
		hang := make(chan struct{})
		first.store.hang.Store(&hang)
		p, err := first.Submit(t.Context(), []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(deadlineAmongOthers / 2)
		for _, m := range without(members, first) {
			if s := m.Status(); s.Last != first.Status().Last {
				t.Errorf("the leader is at entry %d and a follower at %d: the disk was waited for", first.Status().Last, s.Last)
			}
		}
		if s := first.Status(); s.Commit >= s.Last || s.State != "Leader" {
			t.Errorf("committed %d of %d as %s while the leader's disk stands still", s.Commit, s.Last, s.State)
		}
		first.store.hang.Store(nil)
		close(hang)
		if _, err := p.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A voter that is alone, or becomes it, has only its own disk to count on.
func TestASingleVoterWaitsForItsDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 1, nil)
		defer closeAll(t, members)
		first := leader(t, members, 10*time.Second)
		hang := make(chan struct{})
		first.store.hang.Store(&hang)
		before := first.Status().Commit
		p, err := first.Submit(t.Context(), []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(deadlineAmongOthers / 2)
		if s := first.Status(); s.Commit != before {
			t.Errorf("committed entry %d, %d before, while the disk stands still", s.Commit, before)
		}
		first.store.hang.Store(nil)
		close(hang)
		if _, err := p.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
