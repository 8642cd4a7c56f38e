package group

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/raftstore/snapshot"
)

// gate holds the writing of snapshots up.
type gate struct {
	*counter
	hold atomic.Pointer[chan struct{}]
	met  chan struct{}
}

func (g *gate) Snapshot() io.WriterTo { return gated{g.counter.Snapshot(), g} }

type gated struct {
	io.WriterTo
	gate *gate
}

func (g gated) WriteTo(w io.Writer) (int64, error) {
	if c := g.gate.hold.Load(); c != nil {
		g.gate.met <- struct{}{}
		<-*c
	}
	return g.WriterTo.WriteTo(w)
}

// gatedCluster is a cluster with a gate at each member.
func gatedCluster(t *testing.T, n int) ([]*node, []*gate) {
	t.Helper()
	gates := make([]*gate, n)
	members := cluster(t, n, func(i int, c *Config) {
		c.SpoolDir, c.TrailingLogs = t.TempDir(), 5
		c.Store = monotonic{c.Store.(*sickStore)}
		var err error // the library's store in memory shows what is not finished
		c.Snapshots, err = snapshot.Open(t.TempDir(), 2, hclog.NewNullLogger(), nil)
		must(t, err)
	})
	for i, m := range members {
		gates[i] = &gate{counter: m.fsm, met: make(chan struct{}, 1)}
		m.adapter.fsm = gates[i] // nothing has been applied yet
	}
	return members, gates
}

// monotonic is a store whose old entries are dropped by a restore, as they are on
// disk.
type monotonic struct{ *sickStore }

func (monotonic) IsMonotonic() bool { return true }

// A snapshot that was begun before a restore and finished after it made the leader
// look for entries where it has none, and send its own snapshot for ever.
func TestSnapshotBesideARestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, gates := gatedCluster(t, 3)
		defer closeAll(t, members)
		lead := leader(t, members, 5*time.Second)
		for i := range 20 {
			_, err := apply(t, lead, strconv.Itoa(i), time.Second)
			must(t, err)
		}
		meta, saved := backup(t, lead, time.Second)
		_, err := apply(t, lead, "x", time.Second)
		must(t, err)

		slow := make(chan struct{})
		for i := range gates { // at followers too
			gates[i].hold.Store(&slow)
			go func() { _ = members[i].Snapshot(within(t, time.Minute)) }()
		}
		for _, g := range gates {
			<-g.met
		}
		far := without(members, lead)[0] // gets the restored state as a snapshot
		isolate(members, slices.Index(members, far))
		restored := make(chan error, 1)
		go func() { restored <- lead.Restore(within(t, time.Minute), meta, bytes.NewReader(saved)) }()
		time.Sleep(time.Second)
		if err := lead.Restore(within(t, time.Second), meta, bytes.NewReader(saved)); !errors.Is(err, ErrBusy) || err.Error() != string(errRestoring) {
			t.Errorf("a second restore: %v", err)
		}
		for _, g := range gates {
			g.hold.Store(nil)
		}
		close(slow)
		must(t, <-restored)

		for range 10 {
			_, err = apply(t, lead, "x", time.Second)
			must(t, err)
		}
		connect(members, slices.Index(members, far))
		time.Sleep(5 * time.Second)
		lead = leader(t, members, 5*time.Second)
		index, err := lead.ReadIndex(within(t, time.Second))
		must(t, err)
		for i, m := range members {
			if err := m.WaitApplied(within(t, 5*time.Second), index); err != nil || m.Fault() != nil || m.fsm.total() != lead.fsm.total() {
				t.Errorf("member %d: sum %d, want %d, %v, fault %v", i, m.fsm.total(), lead.fsm.total(), err, m.Fault())
			}
		}
	})
}

// A leader that is cut off right after it has restored by itself holds a state
// that nobody agreed to.
func TestARestoreThatWasNotCommittedIsOverruled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, _ := gatedCluster(t, 3)
		defer closeAll(t, members)
		lead := leader(t, members, 5*time.Second)
		_, err := apply(t, lead, "abc", time.Second)
		must(t, err)
		meta, saved := backup(t, lead, time.Second)
		for range 20 {
			_, err = apply(t, lead, "x", time.Second)
			must(t, err)
		}
		isolate(members, slices.Index(members, lead))
		if err := lead.Restore(within(t, time.Second), meta, bytes.NewReader(saved)); !errors.Is(err, ErrAmbiguous) {
			t.Errorf("restored alone: %v", err)
		}
		if lead.fsm.total() != 3 {
			t.Errorf("sum %d", lead.fsm.total())
		}
		others := without(members, lead)
		next := leader(t, others, 10*time.Second)
		_, err = apply(t, next, "y", time.Second)
		must(t, err)
		connect(members, slices.Index(members, lead))
		waitFault(t, lead)
		if !errors.Is(lead.Fault(), ErrOverruled) {
			t.Errorf("fault %v", lead.Fault())
		}
		if _, err := apply(t, leader(t, others, 10*time.Second), "z", time.Second); err != nil {
			t.Error(err)
		}
	})
}

func TestSupersededSnapshotIsNotFinished(t *testing.T) {
	e := silence()
	e.newest = func() uint64 { return 62 }
	store := raft.NewInmemSnapshotStore()
	sink, err := labelling{SnapshotStore: store, forced: &atomic.Bool{}, failed: func(err error) { t.Error(err) }}.Create(raft.SnapshotVersionMax, 61, 1, raft.Configuration{}, 1, nil)
	must(t, err)
	if err := (persister{(&counter{}).Snapshot(), e}).Persist(sink); !errors.Is(err, ErrSuperseded) {
		t.Errorf("written: %v", err)
	}
}

// openOnDisk opens member i of a cluster of three on its storage.
func openOnDisk(t *testing.T, m *node, i int, s storage) {
	t.Helper()
	log, snapshots := s.open(t)
	m.fsm = &counter{}
	var err error
	m.Group, err = Open(t.Context(), Config{
		Name: "test", NodeID: strconv.Itoa(i), Bootstrap: []Server{{"0", "0"}, {"1", "1"}, {"2", "2"}},
		Store: log, Snapshots: snapshots, Transport: m.net, SpoolDir: t.TempDir(), Registry: m.reg, WriteDeadline: time.Minute,
	}, m.fsm)
	must(t, err)
}

// The same on disk, where a restore drops the log: the member starts again by
// itself, gets what it lacks, and until then does not vote for others that lack
// what it had acknowledged.
func TestAnOverruledMemberComesBack(t *testing.T) {
	members, stores := make([]*node, 3), make([]storage, 3)
	for i := range members {
		_, net := raft.NewInmemTransport(raft.ServerAddress(strconv.Itoa(i)))
		members[i], stores[i] = &node{net: net, reg: &measure.Registry{}}, storage{t.TempDir()}
	}
	for i := range members {
		connect(members, i)
		openOnDisk(t, members[i], i, stores[i])
	}
	defer closeAll(t, members)
	lead := leader(t, members, 20*time.Second)
	_, err := apply(t, lead, "abc", 20*time.Second)
	must(t, err)
	meta, saved := backup(t, lead, 20*time.Second)
	for range 20 {
		_, err = apply(t, lead, "x", 20*time.Second)
		must(t, err)
	}
	i := slices.Index(members, lead)
	isolate(members, i)
	_ = lead.Restore(within(t, 20*time.Second), meta, bytes.NewReader(saved)) // it may have lost leadership by now
	if lead.fsm.total() != 3 {
		t.Skip("it did not lead for long enough")
	}
	next := leader(t, without(members, lead), 20*time.Second)
	_, err = apply(t, next, "y", 20*time.Second)
	must(t, err)
	connect(members, i)
	waitFault(t, lead)
	if !errors.Is(lead.Fault(), ErrOverruled) {
		t.Fatalf("fault %v", lead.Fault())
	}
	must(t, lead.Close(within(t, 20*time.Second)))

	isolate(members, i)
	_, lead.net = raft.NewInmemTransport(raft.ServerAddress(strconv.Itoa(i)))
	openOnDisk(t, lead, i, stores[i])
	if lead.promise.kept(20, 1) || !lead.promise.kept(1, 1<<40) {
		t.Errorf("promise %+v", lead.promise)
	}
	connect(members, i)
	next = leader(t, without(members, lead), 20*time.Second)
	_, err = apply(t, next, "z", 20*time.Second)
	must(t, err)
	index, err := next.ReadIndex(within(t, 20*time.Second))
	must(t, err, lead.WaitApplied(within(t, 20*time.Second), index))
	if lead.fsm.total() != next.fsm.total() || lead.Fault() != nil {
		t.Errorf("sum %d, want %d, fault %v", lead.fsm.total(), next.fsm.total(), lead.Fault())
	}
}
