package group

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/raftstore/member"
	"github.com/yardmaster/yardmaster/raftstore/wal"
)

// join starts an empty member that is connected to the others and waits.
func join(t *testing.T, members []*node, edit func(*Config)) []*node {
	t.Helper()
	id := strconv.Itoa(len(members))
	_, net := raft.NewInmemTransport(raft.ServerAddress(id))
	m := &node{fsm: &counter{}, store: &sickStore{Store: wal.Memory()}, net: net, reg: &measure.Registry{}}
	members = append(slices.Clone(members), m)
	connect(members, len(members)-1)
	cfg := Config{
		Name: "test", NodeID: id, Store: m.store, Snapshots: raft.NewInmemSnapshotStore(), Transport: net,
		Registry: m.reg, SpoolDir: t.TempDir(),
	}
	if edit != nil {
		edit(&cfg)
	}
	var err error
	m.Group, err = Open(t.Context(), cfg, m.fsm)
	must(t, err)
	return members
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// backup is a member's saved snapshot.
func backup(t *testing.T, m *node, timeout time.Duration) (SnapshotMeta, []byte) {
	t.Helper()
	meta, r, err := m.SaveSnapshot(within(t, timeout))
	must(t, err)
	saved, err := io.ReadAll(r)
	must(t, err, r.Close())
	return meta, saved
}

func TestMembershipGrowsAndShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := join(t, nil, func(c *Config) { c.Bootstrap = []Server{{"0", "0"}} })
		defer func() { closeAll(t, members) }()
		first := members[0]
		leader(t, members, 5*time.Second)
		if d := first.store.deadline(first); d != deadlineAlone {
			t.Errorf("write deadline alone: %v", d)
		}
		for range 2 {
			members = join(t, members, nil)
			id := strconv.Itoa(len(members) - 1)
			index, _ := first.Members()
			must(t, first.AddVoter(within(t, 5*time.Second), id, id, index))
		}
		members = join(t, members, func(c *Config) { c.Nonvoter = true })
		index, _ := first.Members()
		must(t, first.AddNonvoter(within(t, 5*time.Second), "3", "3", index))
		if err := first.AddNonvoter(within(t, 5*time.Second), "4", "4", index); !errors.Is(err, ErrMembersChanged) {
			t.Errorf("a change based on old members: %v", err)
		}
		if err := first.AddVoter(within(t, 5*time.Second), "9", "2", 0); !errors.Is(err, ErrChangeRefused) {
			t.Errorf("an address twice: %v", err)
		}
		sum, err := apply(t, first, "abc", time.Second)
		must(t, err)
		time.Sleep(time.Second)
		for i, m := range members {
			_, got := m.Members()
			want := []member.Member{{ID: "0", Addr: "0", Voter: true}, {ID: "1", Addr: "1", Voter: true}, {ID: "2", Addr: "2", Voter: true}, {ID: "3", Addr: "3", Voter: false}}
			if d := cmp.Diff(want, got); d != "" || m.fsm.total() != sum {
				t.Errorf("member %d has sum %d and members %s", i, m.fsm.total(), d)
			}
		}
		if d := first.store.deadline(first); d != deadlineAmongOthers {
			t.Errorf("write deadline of three: %v", d)
		}
		must(t, first.Demote(within(t, 5*time.Second), "2", 0), first.Remove(within(t, 5*time.Second), "3", 0))
		if err := members[1].Remove(within(t, 5*time.Second), "2", 0); !errors.Is(err, ErrNotLeader) {
			t.Errorf("a follower removed a member: %v", err)
		}
		must(t, first.Remove(within(t, 5*time.Second), "0", 0)) // the leader itself
		next := leader(t, members[1:2], 5*time.Second)
		_, got := next.Members()
		if d := cmp.Diff([]member.Member{{ID: "1", Addr: "1", Voter: true}, {ID: "2", Addr: "2", Voter: false}}, got); d != "" {
			t.Error(d)
		}
	})
}

func (s *sickStore) deadline(m *node) time.Duration { return m.Group.store.Deadline() }

// A member that comes late gets a snapshot, and one that waits does not disturb.
func TestLateMemberGetsASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 3, func(_ int, c *Config) { c.TrailingLogs, c.SampleEvery = 5, 10 })
		defer func() { closeAll(t, members) }()
		lead := leader(t, members, 5*time.Second)
		for i := range 100 {
			_, err := apply(t, lead, strconv.Itoa(i), time.Second)
			must(t, err)
		}
		must(t, lead.Snapshot(within(t, 5*time.Second)))
		restored := make(chan uint64, 10)
		members = join(t, members, func(c *Config) {
			c.Nonvoter, c.OnRestore, c.SampleEvery = true, func(i uint64) { restored <- i }, 10
		})
		late := members[3]
		time.Sleep(5 * time.Second)
		must(t, lead.AddNonvoter(within(t, 5*time.Second), "3", "3", 0))
		index, err := lead.ReadIndex(within(t, time.Second))
		must(t, err, late.WaitApplied(within(t, 5*time.Second), index))
		if late.fsm.total() != lead.fsm.total() || <-restored == 0 {
			t.Errorf("sum %d, want %d", late.fsm.total(), lead.fsm.total())
		}
		for i := range 100 {
			_, err := apply(t, lead, strconv.Itoa(i), time.Second)
			must(t, err)
		}
		time.Sleep(time.Second)
		compareSamples(t, members)
	})
}

// compareSamples checks that members agree on the samples that they share.
func compareSamples(t *testing.T, members []*node) {
	t.Helper()
	byIndex := map[uint64]uint64{}
	for i, m := range members {
		samples := m.Samples()
		if len(samples) < 5 || len(samples) > keptSamples {
			t.Errorf("member %d has %d samples", i, len(samples))
		}
		for _, s := range samples {
			if want, ok := byIndex[s.Index]; ok && want != s.Digest {
				t.Errorf("member %d differs at %d", i, s.Index)
			}
			byIndex[s.Index] = s.Digest
			if s.Index%10 != 0 { // every tenth entry is the FSM's
				t.Errorf("member %d sampled at %d", i, s.Index)
			}
		}
	}
}

func TestTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 3, nil)
		defer closeAll(t, members)
		lead := leader(t, members, 5*time.Second)
		for i, m := range members {
			if m == lead {
				continue
			}
			if err := m.Transfer(within(t, time.Second), "0"); !errors.Is(err, ErrNotLeader) {
				t.Errorf("a follower handed over: %v", err)
			}
			lead = leader(t, members, 5*time.Second)
			if lead == m {
				continue
			}
			start := time.Now()
			must(t, lead.Transfer(within(t, 5*time.Second), strconv.Itoa(i)))
			if got := leader(t, without(members, lead), time.Second); got != m {
				t.Errorf("%d leads", slices.Index(members, got))
			}
			t.Logf("handed over in %v", time.Since(start))
			if _, err := apply(t, m, "x", time.Second); err != nil {
				t.Error(err)
			}
			lead = m
		}
		if err := lead.Transfer(within(t, time.Second), "nobody"); !errors.Is(err, ErrNoSuchMember) {
			t.Errorf("handed over to nobody: %v", err)
		}
		must(t, lead.Transfer(within(t, 5*time.Second), ""))
	})
}

// A leader that was cut off must not serve a linearizable read, though it still
// believes to lead.
func TestReadIndexOfADeposedLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 3, nil)
		defer closeAll(t, members)
		old := leader(t, members, 5*time.Second)
		index, err := old.ReadIndex(within(t, time.Second))
		must(t, err, old.WaitApplied(within(t, time.Second), index))
		isolate(members, slices.Index(members, old))
		if _, err := old.ReadIndex(within(t, 10*time.Second)); !errors.Is(err, ErrNotLeader) {
			t.Errorf("ReadIndex of a leader without followers: %v", err)
		}
		next := leader(t, without(members, old), 5*time.Second)
		_, err = apply(t, next, "abc", time.Second)
		must(t, err)
		index, err = next.ReadIndex(within(t, time.Second))
		must(t, err, next.WaitApplied(within(t, time.Second), index))
		connect(members, slices.Index(members, old))
		must(t, old.WaitApplied(within(t, 10*time.Second), index))
		if old.fsm.total() != 3 {
			t.Errorf("sum %d", old.fsm.total())
		}
		if _, err := old.ReadIndex(within(t, time.Second)); !errors.Is(err, ErrNotLeader) {
			t.Errorf("ReadIndex of a follower: %v", err)
		}
	})
}

// The last entries may be none of the FSM's: waiting for them ends all the same.
func TestWaitAppliedPassesOtherEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 3, nil)
		defer closeAll(t, members)
		lead := leader(t, members, 5*time.Second)
		_, err := apply(t, lead, "abc", time.Second)
		must(t, err)
		for range 3 {
			must(t, lead.Barrier(within(t, time.Second)))
		}
		index, err := lead.ReadIndex(within(t, time.Second))
		must(t, err)
		if index <= lead.Applied() {
			t.Fatalf("commit %d, applied %d: no barrier is behind", index, lead.Applied())
		}
		for _, m := range members {
			must(t, m.WaitApplied(within(t, time.Second), index))
		}
		if err := lead.WaitApplied(within(t, time.Second), index+1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waited for an entry that does not exist: %v", err)
		}
		if id, _, term := members[0].Leader(); id == "" || term == 0 || members[0].CommitIndex() < index || time.Since(members[0].LastContact()) > time.Second {
			t.Errorf("leader %q of term %d, commit %d", id, term, members[0].CommitIndex())
		}
	})
}

func TestSaveAndRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 3, func(_ int, c *Config) { c.SpoolDir = t.TempDir() })
		defer closeAll(t, members)
		lead := leader(t, members, 5*time.Second)
		_, err := apply(t, lead, "abc", time.Second)
		must(t, err)
		meta, saved := backup(t, lead, time.Second)
		if meta.Size != int64(len(saved)) || len(meta.Members) != 3 || meta.Index == 0 {
			t.Errorf("%+v of %d bytes", meta, len(saved))
		}
		for range 5 { // more often than a loop would be allowed
			_, err = apply(t, lead, "to be undone", time.Second)
			must(t, err, lead.Restore(within(t, 10*time.Second), meta, bytes.NewReader(saved)))
		}
		time.Sleep(time.Second)
		for i, m := range members {
			if m.fsm.total() != 3 || m.Fault() != nil {
				t.Errorf("member %d has sum %d, fault %v", i, m.fsm.total(), m.Fault())
			}
		}
		if err := lead.Restore(within(t, 10*time.Second), meta, bytes.NewReader(saved[1:])); !errors.Is(err, ErrBadSnapshot) {
			t.Errorf("a damaged snapshot: %v", err)
		}
		if err := without(members, lead)[0].Restore(within(t, time.Second), meta, bytes.NewReader(saved)); !errors.Is(err, ErrNotLeader) {
			t.Errorf("restored at a follower: %v", err)
		}
		if sum, err := apply(t, lead, "de", time.Second); err != nil || sum != 5 {
			t.Error(sum, err)
		}
	})
}

// The library panics when what it was told to restore cannot be restored.
func TestAForcedRestoreThatFailsStopsTheGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 3, func(_ int, c *Config) { c.SpoolDir = t.TempDir() })
		defer closeAll(t, members)
		lead := leader(t, members, 5*time.Second)
		_, err := apply(t, lead, "abc", time.Second)
		must(t, err)
		meta, r, err := lead.SaveSnapshot(within(t, time.Second))
		must(t, err)
		lead.fsm.unwilling.Store(true)
		if err := lead.Restore(within(t, 10*time.Second), meta, r); !errors.Is(err, ErrAmbiguous) {
			t.Errorf("Restore = %v", err)
		}
		waitFault(t, lead)
		if !errors.Is(lead.Fault(), errPoison) {
			t.Errorf("fault %v", lead.Fault())
		}
		next := leader(t, without(members, lead), 10*time.Second)
		if sum, err := apply(t, next, "de", time.Second); err != nil || sum != 5 {
			t.Error(sum, err)
		}
	})
}

// The library panics when it is shut down in the midst of one, too.
func TestCloseDuringAForcedRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 1, func(_ int, c *Config) { c.SpoolDir = t.TempDir() })
		m := leader(t, members, 5*time.Second)
		_, err := apply(t, m, "abc", time.Second)
		must(t, err)
		meta, r, err := m.SaveSnapshot(within(t, time.Second))
		must(t, err)
		slow := make(chan struct{})
		m.fsm.slow.Store(&slow)
		restored := make(chan error, 1)
		go func() { restored <- m.Restore(within(t, time.Minute), meta, r) }()
		synctest.Wait()
		if err := m.Close(within(t, 3*time.Second)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close = %v", err)
		}
		close(slow)
		must(t, <-restored, r.Close())
		time.Sleep(time.Minute)
	})
}

// An idle group must be able to write a snapshot after its members changed.
func TestSnapshotAfterAChangeOfMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 3, nil)
		defer closeAll(t, members)
		lead := leader(t, members, 5*time.Second)
		_, err := apply(t, lead, "abc", time.Second)
		must(t, err, lead.AddNonvoter(within(t, time.Second), "7", "7", 0))
		must(t, lead.Snapshot(within(t, time.Second)))
	})
}

// The library's one timer runs while the state is replaced, however long that
// takes, and ends in what otherwise means that nothing was proposed.
func TestRestoreThatOutlastsTheQueuesTimer(t *testing.T) {
	for name, took := range map[string]time.Duration{"within the deadline": 15 * time.Second, "beyond it": 90 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				members := cluster(t, 3, func(_ int, c *Config) { c.SpoolDir = t.TempDir() })
				defer closeAll(t, members)
				lead := leader(t, members, 5*time.Second)
				_, err := apply(t, lead, "abc", time.Second)
				must(t, err)
				meta, r, err := lead.SaveSnapshot(within(t, time.Second))
				must(t, err)
				_, err = apply(t, lead, "to be undone", time.Second)
				must(t, err)
				slow := make(chan struct{})
				lead.fsm.slow.Store(&slow)
				time.AfterFunc(took, func() { close(slow) })
				err = lead.Restore(within(t, time.Minute), meta, r)
				if took < time.Minute {
					must(t, err)
				} else if !errors.Is(err, ErrAmbiguous) || errors.Is(err, ErrBusy) {
					t.Errorf("Restore = %v", err)
				}
				must(t, r.Close())
				time.Sleep(time.Minute)
				for i, m := range members {
					if m.fsm.total() != 3 || m.Fault() != nil {
						t.Errorf("member %d has sum %d, fault %v", i, m.fsm.total(), m.Fault())
					}
				}
			})
		})
	}
}

// Whatever ends a restoration that has begun, it is not said to have had no
// effect; and one that has not leaves no file behind.
func TestRestoreSaysWhetherItBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 3, func(_ int, c *Config) { c.SpoolDir = t.TempDir() })
		defer closeAll(t, members)
		lead := leader(t, members, 5*time.Second)
		_, err := apply(t, lead, "abc", time.Second)
		must(t, err)
		meta, saved := backup(t, lead, time.Second)

		for range maxInFlight {
			lead.slots <- struct{}{}
		}
		if err := lead.Restore(within(t, time.Second), meta, bytes.NewReader(saved)); !errors.Is(err, ErrBusy) {
			t.Errorf("Restore without a slot = %v", err)
		}
		for range maxInFlight {
			<-lead.slots
		}
		if left, err := os.ReadDir(lead.cfg.SpoolDir); err != nil || len(left) > 0 {
			t.Error(left, err)
		}

		slow := make(chan struct{})
		lead.fsm.slow.Store(&slow)
		time.AfterFunc(10*time.Second, func() { close(slow) })
		time.AfterFunc(time.Second, func() { isolate(members, slices.Index(members, lead)) })
		err = lead.Restore(within(t, time.Minute), meta, bytes.NewReader(saved))
		if !errors.Is(err, ErrAmbiguous) {
			t.Errorf("Restore of a leader that lost its followers meanwhile = %v", err)
		}
		connect(members, slices.Index(members, lead))
	})
}
