package group

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/raftstore/member"
	"github.com/yardmaster/yardmaster/raftstore/snapshot"
	"github.com/yardmaster/yardmaster/raftstore/wal"
)

// A member whose disk fails leaves alone, whichever it is, and stays away.
func TestFailingDiskOfOneOfThree(t *testing.T) {
	for _, leads := range []bool{true, false} {
		t.Run("leader "+strconv.FormatBool(leads), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				members := cluster(t, 3, nil)
				defer closeAll(t, members)
				first := leader(t, members, 5*time.Second)
				sick := first
				if !leads {
					sick = without(members, first)[0]
				}
				sick.store.fail.Store(true)
				_, _ = apply(t, first, "abc", 2*time.Second)
				waitFault(t, sick)
				if !errors.Is(sick.Fault(), wal.ErrFailed) || !errors.Is(sick.Fault(), errIO) {
					t.Errorf("fault %v", sick.Fault())
				}
				next := leader(t, without(members, sick), 10*time.Second)
				for range 20 {
					if _, err := apply(t, next, "x", time.Second); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Second)
					if !next.Leading() || sick.Leading() {
						t.Fatal("the sick member disturbs")
					}
				}
			})
		})
	}
}

// Under the watermark a leader hands over and refuses, and comes back later.
func TestLowDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var free [3]atomic.Uint64
		members := cluster(t, 3, func(i int, c *Config) {
			free[i].Store(1 << 30)
			c.FreeBytes = func() (uint64, error) { return free[i].Load(), nil }
		})
		defer closeAll(t, members)
		low := leader(t, members, 5*time.Second)
		i := slices.Index(members, low)
		free[i].Store(1 << 20)
		time.Sleep(1500 * time.Millisecond)
		next := leader(t, without(members, low), 2*time.Second)
		if _, err := apply(t, next, "abc", time.Second); err != nil {
			t.Error(err)
		}
		if _, err := apply(t, low, "x", time.Second); !errors.Is(err, ErrLowDisk) {
			t.Errorf("an entry on a nearly full disk: %v", err)
		}
		for n := range free { // all of them: nobody takes entries
			free[n].Store(1 << 20)
		}
		time.Sleep(5 * time.Second)
		for _, m := range members {
			if _, err := apply(t, m, "x", time.Second); !errors.Is(err, ErrLowDisk) || m.Leading() {
				t.Errorf("with all disks nearly full: %v, leading %v", err, m.Leading())
			}
			if m.Fault() != nil {
				t.Error(m.Fault())
			}
		}
		for n := range free {
			free[n].Store(1 << 30)
		}
		if _, err := apply(t, leader(t, members, 10*time.Second), "x", time.Second); err != nil {
			t.Errorf("with room again: %v", err)
		}
	})
}

// storage is a data directory of one group.
type storage struct{ dir string }

func (s storage) open(t *testing.T) (wal.Store, *snapshot.Store) {
	t.Helper()
	log, err := wal.Open(filepath.Join(s.dir, "wal"), hclog.NewNullLogger())
	must(t, err)
	snapshots, err := snapshot.Open(s.dir, 2, hclog.NewNullLogger(), nil)
	must(t, err)
	return log, snapshots
}

// start opens a single voter on the storage.
func (s storage) start(t *testing.T, fsm *counter, trailing uint64) (*node, error) {
	t.Helper()
	log, snapshots := s.open(t)
	_, net := raft.NewInmemTransport("0")
	m := &node{fsm: fsm, net: net, reg: &measure.Registry{}}
	var err error
	m.Group, err = Open(t.Context(), Config{
		Name: "test", NodeID: "0", Bootstrap: []Server{{"0", "0"}}, Store: log, Snapshots: snapshots, Transport: net,
		TrailingLogs: trailing, Registry: m.reg,
	}, fsm)
	return m, err
}

// grown is a storage with two snapshots, the newer of which is described by the
// path, and entries behind each.
func grown(t *testing.T, trailing uint64) (s storage, newer string) {
	t.Helper()
	s = storage{t.TempDir()}
	m, err := s.start(t, &counter{}, trailing)
	must(t, err)
	leader(t, []*node{m}, 20*time.Second)
	for range 2 {
		for range 10 {
			_, err := apply(t, m, "x", 20*time.Second)
			must(t, err)
		}
		must(t, m.Snapshot(within(t, 20*time.Second)))
	}
	_, err = apply(t, m, "x", 20*time.Second)
	must(t, err)
	closeAll(t, []*node{m})
	log, snapshots := s.open(t)
	list, err := snapshots.List()
	must(t, err, log.Close())
	return s, filepath.Join(s.dir, "snapshots", list[0].ID)
}

func damage(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	b[len(b)/2] ^= 1
	must(t, os.WriteFile(path, b, 0o600))
}

func TestDamagedSnapshotFallsBackToTheOneBefore(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"state.bin", "meta.json"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			s, newer := grown(t, 1000)
			damage(t, filepath.Join(newer, file))
			fsm := &counter{}
			m, err := s.start(t, fsm, 1000)
			must(t, err)
			defer closeAll(t, []*node{m})
			leader(t, []*node{m}, 20*time.Second)
			if fsm.total() != 21 {
				t.Errorf("sum %d, want 21", fsm.total())
			}
			if _, err := os.Stat(filepath.Join(s.dir, "quarantine", filepath.Base(newer))); err != nil {
				t.Error(err)
			}
		})
	}
}

// Without the entries between the older snapshot and the log, the library
// panics when it comes to apply them.
func TestDamagedSnapshotThatTheLogDoesNotReachIsRefused(t *testing.T) {
	t.Parallel()
	s, newer := grown(t, 1)
	damage(t, filepath.Join(newer, "state.bin"))
	for _, what := range []string{"an older snapshot", "again", "none"} {
		if what == "none" {
			must(t, os.RemoveAll(filepath.Join(s.dir, "snapshots")))
		}
		m, err := s.start(t, &counter{}, 1)
		if !errors.Is(err, ErrLogGap) {
			t.Errorf("%s: %v", what, err)
		}
		if err == nil {
			closeAll(t, []*node{m})
		}
	}
}

func TestInspectAndRecover(t *testing.T) {
	t.Parallel()
	s, _ := grown(t, 5)
	log, err := wal.OpenReadOnly(filepath.Join(s.dir, "wal"), hclog.NewNullLogger())
	must(t, err)
	got, err := Inspect(log, snapshot.OpenReadOnly(s.dir))
	must(t, err, log.Close())
	if len(got.Snapshots) != 2 || got.Last <= got.Snapshots[0].Index || got.First < 2 || got.Term == 0 || got.LastTerm != got.Term {
		t.Errorf("%+v", got)
	}
	if d := cmp.Diff([]member.Member{{ID: "0", Addr: "0", Voter: true}}, got.Members); d != "" || got.MembersIndex == 0 {
		t.Errorf("members at %d: %s", got.MembersIndex, d)
	}

	store, snapshots := s.open(t)
	must(t, Recover(RecoverConfig{NodeID: "0", Servers: []Server{{"0", "elsewhere"}}, Store: store, Snapshots: snapshots}, &counter{}))
	after, err := Inspect(store, snapshots)
	must(t, err, store.Close())
	if d := cmp.Diff([]member.Member{{ID: "0", Addr: "elsewhere", Voter: true}}, after.Members); d != "" {
		t.Error(d)
	}
	fsm := &counter{}
	m, err := s.start(t, fsm, 5)
	must(t, err)
	defer closeAll(t, []*node{m})
	leader(t, []*node{m}, 20*time.Second)
	if fsm.total() != 21 {
		t.Errorf("sum %d after the recovery, want 21", fsm.total())
	}
}

func TestRecoverRefusesAnEntryOfTheFuture(t *testing.T) {
	store, snapshots := wal.Memory(), raft.NewInmemSnapshotStore()
	must(t, store.StoreLogs([]*raft.Log{{Index: 1, Term: 1, Data: []byte("poison")}}))
	err := Recover(RecoverConfig{NodeID: "0", Servers: []Server{{"0", "0"}}, Store: store, Snapshots: snapshots}, &counter{})
	if !errors.Is(err, ErrCannotApply) {
		t.Errorf("Recover = %v", err)
	}
}

func TestFullDiskIsCalledThat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 1, nil)
		defer closeAll(t, members)
		m := leader(t, members, 5*time.Second)
		m.store.failure.Store(&os.PathError{Op: "write", Path: "1.wal", Err: unix.ENOSPC})
		m.store.fail.Store(true)
		_, err := apply(t, m, "x", time.Second)
		if !errors.Is(err, ErrAmbiguous) || !errors.Is(err, wal.ErrFull) {
			t.Errorf("Apply = %v", err)
		}
	})
}
