package raftstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/raftstore/group"
	"github.com/yardmaster/yardmaster/raftstore/wal"
)

// Store is an open data directory with its running Raft node. It is safe for
// concurrent use.
type Store struct {
	machine *planner.Machine
	core    *group.Group[planner.Result]
	dir     *directory // nil in memory
	id      identity
	sync    wal.SyncTimes
	cfg     Config
	prefix  *prefix.State
	// incarnation names this run of the node.
	incarnation string

	closing sync.Once
	closed  error
}

// Open opens the store and returns when the state on disk is in memory; the
// node leads a moment later, see WaitLeader. ctx bounds the opening only.
// Errors wrap ErrInUse, ErrOtherNode, ErrOtherCluster, ErrNewerFormat,
// ErrDamaged or the file system's.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("raftstore: %w", err)
	}
	cfg = cfg.withDefaults()
	s := &Store{machine: planner.New(), cfg: cfg, prefix: prefix.NewState(cfg.Prefix), incarnation: NewRequestID().String()}
	if err := s.open(ctx, cfg); err != nil {
		return nil, fmt.Errorf("raftstore: %w", err)
	}
	return s, nil
}

func (s *Store) open(ctx context.Context, cfg Config) error {
	store, snapshots, err := s.storage(cfg)
	if err != nil {
		return errors.Join(err, s.dir.close())
	}
	// One voter needs no network; the address is only a name.
	_, local := raft.NewInmemTransport(raft.ServerAddress(cfg.NodeID))
	s.core, err = group.Open(ctx, group.Config{
		Name: "core", NodeID: cfg.NodeID, Bootstrap: []group.Server{{ID: cfg.NodeID, Addr: cfg.NodeID}},
		Store: store, Snapshots: snapshots, Transport: local,
		Heartbeat: cfg.Heartbeat, Lease: cfg.Lease, WriteDeadline: cfg.WriteDeadline,
		OnLead: s.onLead, Registry: cfg.Registry, Logger: cfg.Logger,
	}, machineFSM{s.machine})
	if err != nil {
		return errors.Join(err, s.dir.close())
	}
	return nil
}

func (s *Store) storage(cfg Config) (wal.Store, raft.SnapshotStore, error) {
	if cfg.InMemory {
		s.id = identity{Format: format, NodeID: cfg.NodeID, ClusterID: cfg.ClusterID}
		if s.id.ClusterID == "" {
			s.id.ClusterID = newClusterID()
		}
		return wal.Memory(), raft.NewInmemSnapshotStore(), nil
	}
	var err error
	if s.dir, err = openDirectory(cfg.Dir, cfg.NodeID, cfg.ClusterID); err != nil {
		return nil, nil, err
	}
	s.id = s.dir.id
	if s.sync, err = wal.ProbeSync(s.dir.path); err != nil {
		return nil, nil, err
	}
	if s.sync.Slow() {
		cfg.Logger.Warn("the disk under the data directory is slow to sync; elections and changes will suffer, use a local SSD",
			"dir", cfg.Dir, "median", s.sync.Median, "worst", s.sync.Worst)
	}
	hlog := group.NewHCLog(cfg.Logger.With("group", "core"))
	store, err := wal.Open(s.dir.join("core", "wal"), hlog)
	if err != nil {
		return nil, nil, err
	}
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(s.dir.join("core"), 2, hlog)
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	return store, snapshots, nil
}

// onLead gives a new cluster its name and checks that the log is of this one.
func (s *Store) onLead(ctx context.Context) error {
	switch s.machine.ClusterID() {
	case s.id.ClusterID:
		return nil
	case "":
		res, err := s.Propose(ctx, planner.InitCluster{ClusterID: s.id.ClusterID})
		if err != nil {
			return err
		}
		return res.Err()
	default:
		return fmt.Errorf("%w: the log is of %s, meta.json of %s", ErrOtherCluster, s.machine.ClusterID(), s.id.ClusterID)
	}
}

// Propose brings cmd into force and returns what it got, once it is applied on
// this node. A refusal by the state machine is in the result, see
// planner.Result.Err. Errors wrap planner.ErrInvalid, ErrNotLeader, ErrBusy or
// ErrClosed when nothing was proposed, and ErrAmbiguous when that is not known.
func (s *Store) Propose(ctx context.Context, cmd planner.Command) (planner.Result, error) {
	return s.ProposeAs(ctx, NewRequestID(), cmd)
}

// ProposeAs is Propose under a request id of the caller's: repeating it after
// ErrAmbiguous, with the same command, has the effect of proposing once.
func (s *Store) ProposeAs(ctx context.Context, id planner.RequestID, cmd planner.Command) (planner.Result, error) {
	entry, err := s.machine.Encode(id, cmd)
	if err != nil {
		return planner.Result{}, err
	}
	return s.core.Apply(ctx, entry)
}

// NewRequestID is a random request id.
func NewRequestID() planner.RequestID {
	var id planner.RequestID
	_, _ = rand.Read(id[:]) // never fails
	return id
}

// View is the fleet as this node knows it, from memory: it needs no leader and
// works after a fault.
func (s *Store) View() *fleet.View { return s.machine.View() }

// Leading reports whether this node leads, has applied everything committed
// before, and knows its cluster.
func (s *Store) Leading() bool { return s.core.Leading() }

// LeadingPrefix is Leading of the prefix group.
func (s *Store) LeadingPrefix() bool { return s.Leading() }

// Leader is the node that leads the core group, and where its port is; empty
// when none is known.
func (s *Store) Leader() (id, addr string) {
	if s.core.Status().Leader == "" {
		return "", ""
	}
	return s.cfg.NodeID, s.cfg.Advertise
}

// PrefixLeader is Leader of the prefix group.
func (s *Store) PrefixLeader() (id, addr string) { return s.Leader() }

// WaitLeader returns when the cluster has a leader that takes proposals, as far
// as this node knows, or with ctx's error or the fault.
func (s *Store) WaitLeader(ctx context.Context) error {
	return s.waitUntil(ctx, "no leader", s.Leading)
}

// Ready is nil once this node has caught up: it has applied, in both groups,
// what was committed when it came in. It stays ready when leaders vanish. Errors
// wrap ErrNotReady.
func (s *Store) Ready() error {
	if !s.Leading() {
		return fmt.Errorf("%w: waiting for a leader", ErrNotReady)
	}
	return nil
}

// WaitReady returns when the node is ready, or with ctx's error or the fault.
func (s *Store) WaitReady(ctx context.Context) error {
	return s.waitUntil(ctx, "not ready", func() bool { return s.Ready() == nil })
}

func (s *Store) waitUntil(ctx context.Context, what string, done func() bool) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("raftstore: %s: %w", what, ctx.Err())
		case <-s.Faulted():
			return s.Fault()
		case <-tick.C:
		}
	}
	return nil
}

// Prefix is which worker holds which KV block, as this node knows it. Only
// ProposeFrame may change it.
func (s *Store) Prefix() *prefix.State { return s.prefix }

// ProposeFrame brings a frame into force, from any node, and says what became of
// it. A frame may be proposed again: its numbers make that harmless.
func (s *Store) ProposeFrame(_ context.Context, f *prefix.Frame) (prefix.Outcome, error) {
	if err := f.Validate(); err != nil {
		return 0, err
	}
	return s.prefix.Apply(f), nil
}

// NodeID names this node.
func (s *Store) NodeID() string { return s.cfg.NodeID }

// Incarnation names this run of the node.
func (s *Store) Incarnation() string { return s.incarnation }

// ClusterID names the cluster the store belongs to.
func (s *Store) ClusterID() string { return s.id.ClusterID }

// FeatureLevel is the committed feature level.
func (s *Store) FeatureLevel() uint32 { return s.machine.FeatureLevel() }

// Faulted is closed when the Raft node has stopped for good: the process, or
// this store, has to be started anew for changes to be possible.
func (s *Store) Faulted() <-chan struct{} { return s.core.Faulted() }

// Fault is why the node stopped, or nil.
func (s *Store) Fault() error { return s.core.Fault() }

// Snapshot writes a snapshot now, beside those the node writes by itself.
func (s *Store) Snapshot(ctx context.Context) error { return s.core.Snapshot(ctx) }

// Close stops the node within ctx and releases the directory. View still
// works. A second call returns what the first did.
func (s *Store) Close(ctx context.Context) error {
	s.closing.Do(func() { s.closed = errors.Join(s.core.Close(ctx), s.dir.close()) })
	return s.closed
}

// machineFSM fits the planner's machine into a group.
type machineFSM struct{ *planner.Machine }

func (f machineFSM) Snapshot() io.WriterTo { return f.Machine.Snapshot() }
