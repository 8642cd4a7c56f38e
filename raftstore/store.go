package raftstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/raftstore/group"
	"github.com/yardmaster/yardmaster/raftstore/wal"
)

// Errors of proposals, as raftstore/group defines them.
var (
	// ErrNotLeader means that this node does not lead; nothing was proposed.
	ErrNotLeader = group.ErrNotLeader
	// ErrAmbiguous means that the command may or may not come into force.
	// ProposeAs with the same request id may be repeated.
	ErrAmbiguous = group.ErrAmbiguous
	// ErrBusy means that too much is in flight; nothing was proposed.
	ErrBusy = group.ErrBusy
	// ErrClosed means that the store was closed or has a fault; nothing was
	// proposed.
	ErrClosed = group.ErrClosed
)

// Config says how to open a store.
type Config struct {
	Dir      string // data directory; created if absent
	InMemory bool   // keep everything in memory instead; Dir is ignored
	NodeID   string // stable name of this node; empty means "planner-0"
	// ClusterID, if not empty, must be the directory's. A new directory takes it,
	// or a random one.
	ClusterID string

	Heartbeat     time.Duration // heartbeat and election timeout; 0 means 300 ms
	Lease         time.Duration // leader lease; 0 means half of Heartbeat
	WriteDeadline time.Duration // a write slower than this is a hung disk; 0 means 5 s

	Registry *measure.Registry // required
	Logger   *slog.Logger      // nil discards
}

func (c *Config) validate() error {
	var faults []error
	if c.Dir == "" && !c.InMemory {
		faults = append(faults, errors.New("no data directory and not in memory"))
	}
	if c.Registry == nil {
		faults = append(faults, errors.New("no metrics registry"))
	}
	if len(c.NodeID) > 128 {
		faults = append(faults, errors.New("node id is longer than 128 bytes"))
	}
	if c.Heartbeat < 0 || c.Lease < 0 || c.WriteDeadline < 0 || (c.Heartbeat > 0 && c.Lease > c.Heartbeat) {
		faults = append(faults, errors.New("a timer is negative or the lease outlasts the heartbeat timeout"))
	}
	return errors.Join(faults...)
}

// Store is an open data directory with its running Raft node. It is safe for
// concurrent use.
type Store struct {
	machine *planner.Machine
	core    *group.Group[planner.Result]
	dir     *directory // nil in memory
	id      identity
	sync    wal.SyncTimes

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
	if cfg.NodeID == "" {
		cfg.NodeID = "planner-0"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Store{machine: planner.New()}
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
		Name: "core", NodeID: cfg.NodeID, Bootstrap: true,
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
	entry, err := planner.Encode(id, cmd)
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

// Read is View, linearizable: it shows every change that was acknowledged
// before the call. Errors are those of Propose.
func (s *Store) Read(ctx context.Context) (*fleet.View, error) {
	if err := s.core.Barrier(ctx); err != nil {
		return nil, err
	}
	return s.View(), nil
}

// Leading reports whether this node leads, has applied everything committed
// before, and knows its cluster.
func (s *Store) Leading() bool { return s.core.Leading() }

// WaitLeader returns when this node leads, or with ctx's error or the fault.
func (s *Store) WaitLeader(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !s.Leading() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("raftstore: no leadership: %w", ctx.Err())
		case <-s.Faulted():
			return s.Fault()
		case <-tick.C:
		}
	}
	return nil
}

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

// Status is where the node stands.
type Status struct {
	group.Status
	ClusterID string
	NodeID    string
	Leading   bool
	Sync      wal.SyncTimes // measured at Open; zero in memory
	Fault     error
}

// Status reads the node's position for an operator.
func (s *Store) Status() Status {
	return Status{
		Status: s.core.Status(), ClusterID: s.id.ClusterID, NodeID: s.id.NodeID,
		Leading: s.Leading(), Sync: s.sync, Fault: s.Fault(),
	}
}

// Close stops the node within ctx and releases the directory. View still
// works. A second call returns what the first did.
func (s *Store) Close(ctx context.Context) error {
	s.closing.Do(func() { s.closed = errors.Join(s.core.Close(ctx), s.dir.close()) })
	return s.closed
}

// machineFSM fits the planner's machine into a group.
type machineFSM struct{ *planner.Machine }

func (f machineFSM) Snapshot() io.WriterTo { return f.Machine.Snapshot() }
