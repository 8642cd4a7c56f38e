package raftstore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/raftstore/group"
	"github.com/yardmaster/yardmaster/raftstore/prefixlog"
	"github.com/yardmaster/yardmaster/raftstore/transport"
	"github.com/yardmaster/yardmaster/raftstore/wal"
)

func (s *Store) open(ctx context.Context) error {
	if err := s.openStorage(); err != nil {
		return err
	}
	if err := s.openBlobs(); err != nil {
		return err
	}
	if s.cfg.Port == nil {
		return s.openAlone(ctx)
	}
	s.openNetwork()
	if s.ClusterID() == "" {
		s.tasks.Go("looking for a cluster", s.findHome)
	} else if err := s.comeHome(ctx); err != nil {
		return err
	}
	s.tasks.Go("greeting peers", s.greetAlways)
	return nil
}

// openStorage locks the directory and reads who this node is.
func (s *Store) openStorage() error {
	s.id.Store(&nameplate{Format: format, NodeID: s.cfg.NodeID})
	if s.cfg.Nonvoter {
		var err error
		s.spool, err = newSpool()
		return err
	}
	if s.cfg.InMemory {
		return nil
	}
	var err error
	if s.dir, err = openDirectory(s.cfg.Dir, s.cfg.NodeID, s.cfg.ClusterID); err != nil {
		return err
	}
	id := s.dir.id // readers keep theirs while the directory's changes
	s.id.Store(&id)
	s.home.joined.Store(s.dir.id.Joined)
	s.dir.sweep()
	if s.sync, err = wal.ProbeSync(s.dir.path); err != nil {
		return err
	}
	if s.sync.Slow() {
		s.log.Warn("the disk under the data directory is slow to sync; elections and changes will suffer, use a local SSD",
			"dir", s.cfg.Dir, "median", s.sync.Median, "worst", s.sync.Worst)
	}
	return nil
}

// openAlone runs the one voter of a cluster of its own.
func (s *Store) openAlone(ctx context.Context) error {
	self := []group.Server{{ID: s.cfg.NodeID, Addr: s.address()}}
	if s.ClusterID() == "" {
		id := s.cfg.ClusterID
		if id == "" {
			id = newClusterID()
		}
		if err := s.settle(id, self); err != nil {
			return err
		}
	}
	return s.openGroups(ctx, self)
}

// address is how this node stands in configurations. One without a port needs
// no address, only a name.
func (s *Store) address() string {
	if s.cfg.Advertise != "" {
		return s.cfg.Advertise
	}
	return s.cfg.NodeID
}

// settle gives the node its cluster, for ever.
func (s *Store) settle(clusterID string, founders []group.Server) error {
	past := s.heritage(clusterID)
	if s.dir == nil {
		s.id.Store(&nameplate{Format: format, NodeID: s.cfg.NodeID, ClusterID: clusterID, Founders: founders, Recovered: past})
		return nil
	}
	if err := s.dir.found(clusterID, founders, past); err != nil {
		return err
	}
	id := s.dir.id
	s.id.Store(&id)
	return nil
}

// openGroups starts the node's part in both groups. Founders bootstrap a group
// that is empty.
func (s *Store) openGroups(ctx context.Context, founders []group.Server) error {
	if err := s.dir.complete(); err != nil {
		return err
	}
	core, err := openGroup(ctx, s, groupConfig{
		name: "core", proto: transport.ProtoCore, founders: founders, onLead: s.onLead,
	}, machineFSM{s.machine, s.cfg.MaxLevel})
	if err != nil {
		return err
	}
	if _, members := core.Members(); len(founders) == 0 && len(members) == 1 && members[0].ID == s.cfg.NodeID && members[0].Voter {
		founders = []group.Server{{ID: s.cfg.NodeID, Addr: s.address()}} // of a directory without a group prefix
	}
	trailing := uint64(prefixTrailing)
	if s.cfg.Nonvoter {
		trailing = prefixTrailingNonvoter
	}
	pre, err := openGroup(ctx, s, groupConfig{
		name: "prefix", proto: transport.ProtoPrefix, founders: founders,
		snapshotEvery: prefixSnapshotEvery, snapshotEntries: prefixSnapshotEntries, trailing: trailing,
	}, s.prefix)
	if err != nil {
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
		defer cancel()
		return errors.Join(err, core.Close(bound))
	}
	g := &groups{core: core, prefix: pre}
	g.frames = prefixlog.NewBatcher(prefixlog.Config{Submit: s.submitFrames(g)})
	s.groups.Store(g)
	s.watch(g) //nolint:contextcheck // ctx bounds the opening only
	return nil
}

// watch starts what accompanies the groups. All of it ends with the store.
func (s *Store) watch(g *groups) {
	s.tasks.Go("watching leaders", func() { s.watchLeaders(g) })
	s.tasks.Go("watching for faults", func() { s.watchFaults(g) })
	s.tasks.Go("catching up", func() { s.catchUp(g) })
	s.tasks.Go("tending members", func() { s.tend(g) })
	s.tasks.Go("keeping policies", s.keepBlobs)
}

// closeTime bounds the closing of what did not open.
const closeTime = 5 * time.Second

// The group prefix has many more entries than the other, and larger snapshots.
const (
	prefixSnapshotEvery    = 5 * time.Minute
	prefixSnapshotEntries  = 32_768
	prefixTrailing         = 65_536
	prefixTrailingNonvoter = 4096
)

// groupConfig is what the two groups differ in; zero numbers are package group's.
type groupConfig struct {
	name, proto     string
	founders        []group.Server
	onLead          func(context.Context) error
	snapshotEvery   time.Duration
	snapshotEntries uint64
	trailing        uint64
}

func openGroup[R any](ctx context.Context, s *Store, c groupConfig, fsm group.FSM[R]) (*group.Group[R], error) {
	store, snapshots, err := s.storage(c.name)
	if err != nil {
		return nil, s.dir.damaged(c.name, err)
	}
	cfg := group.Config{
		Name: c.name, NodeID: s.cfg.NodeID, Nonvoter: s.cfg.Nonvoter, Bootstrap: c.founders,
		Store: store, Snapshots: snapshots, Transport: s.transport(c.proto), SpoolDir: s.spoolDir(),
		Heartbeat: s.cfg.Heartbeat, Lease: s.cfg.Lease, WriteDeadline: s.cfg.WriteDeadline,
		SnapshotEvery: c.snapshotEvery, SnapshotEntries: c.snapshotEntries, TrailingLogs: c.trailing,
		OnLead: c.onLead, Registry: s.cfg.Registry, Logger: s.log,
	}
	if s.dir != nil {
		cfg.FreeBytes = func() (uint64, error) { return wal.FreeBytes(s.dir.path) }
	}
	s.cfg.Tuning.apply(&cfg)
	g, err := group.Open(ctx, cfg, fsm)
	return g, s.dir.damaged(c.name, err)
}

// transport carries one group. The protocol's name has the cluster's in it, so
// that nodes of two clusters cannot exchange as much as a heartbeat, whatever
// addresses and ids they share.
func (s *Store) transport(proto string) transport.Inner {
	if s.cfg.Port == nil {
		_, local := raft.NewInmemTransport(raft.ServerAddress(s.address()))
		return local
	}
	return s.cfg.Port.Raft(proto+"/"+s.ClusterID(), s.net.book.Resolve, s.cfg.Advertise)
}

func (s *Store) storage(name string) (wal.Store, raft.SnapshotStore, error) {
	switch {
	case s.cfg.Nonvoter:
		// The log is short; a snapshot may be large.
		hlog := group.NewHCLog(s.log.With("group", name))
		snapshots, err := raft.NewFileSnapshotStoreWithLogger(filepath.Join(s.spool.path, name), 1, hlog)
		return wal.Memory(), snapshots, err
	case s.dir == nil:
		return wal.Memory(), raft.NewInmemSnapshotStore(), nil
	}
	return s.dir.storage(name, s.log)
}

// onLead gives a new cluster its name and checks that the log is of this one.
func (s *Store) onLead(ctx context.Context) error {
	switch s.machine.ClusterID() {
	case s.ClusterID():
		return nil
	case "":
		return s.nameCluster(ctx)
	default:
		return fmt.Errorf("%w: the log is of %s, meta.json of %s", ErrOtherCluster, s.machine.ClusterID(), s.ClusterID())
	}
}

func (s *Store) nameCluster(ctx context.Context) error {
	g := s.groups.Load()
	if g == nil {
		return fmt.Errorf("%w: still opening", ErrNotReady)
	}
	entry, err := s.machine.Encode(NewRequestID(), planner.InitCluster{ClusterID: s.ClusterID()})
	if err != nil {
		return err
	}
	res, err := g.core.Apply(ctx, entry)
	if err != nil {
		return err
	}
	return res.Err()
}

// lookEvery is how often leadership is looked at though no change was told.
const lookEvery = 100 * time.Millisecond

// watchLeaders rings a group's bell when its leadership has changed.
func (s *Store) watchLeaders(g *groups) {
	type word struct {
		leader string
		term   uint64
		leads  bool
	}
	look := func(l leader) (w word) {
		w.leader, _, w.term = l.Leader()
		w.leads = l.Leading()
		return w
	}
	var core, pre word
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		if now := look(g.core); now != core {
			core = now
			s.bells.core.ring()
		}
		if now := look(g.prefix); now != pre {
			pre = now
			s.bells.prefix.ring()
		}
		select {
		case <-g.core.Changes():
		case <-g.prefix.Changes():
		case <-tick.C:
		case <-s.ctx.Done():
			return
		}
	}
}

// watchFaults stops the whole node when one group has: they share a disk and a
// purpose, and a node that takes half a part is harder to reason about than one
// that is gone.
func (s *Store) watchFaults(g *groups) {
	select {
	case <-g.core.Faulted():
		s.trip(s.dir.damaged("core", fmt.Errorf("group core: %w", g.core.Fault())))
	case <-g.prefix.Faulted():
		s.trip(s.dir.damaged("prefix", fmt.Errorf("group prefix: %w", g.prefix.Fault())))
	case <-s.faulted:
	case <-s.ctx.Done():
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), closeTime)
	defer cancel()
	// Errors come again from Close, whose caller can do something about them.
	_ = g.core.Close(ctx)
	_ = g.prefix.Close(ctx)
}

var _ group.FSM[[]prefix.Outcome] = (*prefixlog.FSM)(nil)
