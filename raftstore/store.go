package raftstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/quota"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/raftstore/group"
	"github.com/yardmaster/yardmaster/raftstore/prefixlog"
	"github.com/yardmaster/yardmaster/raftstore/wal"
)

// Store is a node of a cluster with its two Raft groups. It is safe for
// concurrent use.
type Store struct {
	cfg         Config
	log         *slog.Logger
	incarnation string // names this run of the node
	machine     *planner.Machine
	prefix      *prefixlog.FSM
	dir         *directory // nil in memory
	spool       *spool     // a gateway's folder for snapshots, else nil
	sync        wal.SyncTimes
	blobs       *blobs // policies' bytes; nil until the storage is open

	id     atomic.Pointer[nameplate] // its cluster is empty before the node is in one
	groups atomic.Pointer[groups]    // nil until then
	net    *network                  // nil alone
	home   home                      // how it comes into a cluster
	pace   pace
	bells  struct{ core, prefix bell } // ring when leadership changes
	ready  atomic.Bool
	care   care // the leader's
	// restoring is set while RestoreSnapshot is under way.
	restoring atomic.Bool

	faultOnce sync.Once
	faulted   chan struct{}
	fault     error // written before faulted is closed

	ctx     context.Context // the life of the store, not of a call
	cancel  context.CancelFunc
	tasks   crew
	closing sync.Once
	closed  error
}

// groups are the two Raft groups of a node that is in a cluster.
type groups struct {
	core   *group.Group[planner.Result]
	prefix *group.Group[[]prefix.Outcome]
	frames *prefixlog.Batcher
}

// Open opens the store and returns when the state on disk is in memory. A node
// that is in no cluster yet goes on to found or find one; see Ready and
// WaitReady. ctx bounds the opening only. Errors wrap ErrInUse, ErrOtherNode,
// ErrOtherCluster, ErrNewerFormat, ErrDamaged, ErrIDInUse or the file system's.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("raftstore: %w", err)
	}
	cfg = cfg.withDefaults()
	s := &Store{
		cfg: cfg, log: cfg.Logger, incarnation: NewRequestID().String(),
		machine: planner.NewAtLevel(cfg.MaxLevel), prefix: prefixlog.New(prefix.NewState(cfg.Prefix)),
		faulted: make(chan struct{}), home: newHome(), pace: cmp.Or(cfg.pace, paceOf(cfg.Heartbeat)),
	}
	s.machine.Windows(cfg.Window)
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.open(ctx); err != nil {
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
		defer cancel()
		return nil, fmt.Errorf("raftstore: %w", errors.Join(err, s.Close(bound)))
	}
	return s, nil
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

// State is the replicated state of the group core, for reading: registers,
// quotas, members' records. It works as View does.
func (s *Store) State() State { return s.machine }

// State is what can be read of the group core. What comes out is immutable.
type State interface {
	Register(key string) (planner.Register, bool)
	Registers() []planner.Register
	Member(id string) (planner.Member, bool)
	Members() []planner.Member
	Quota(tenant string) (*quota.Tenant, bool)
	Quotas() quota.Ledger
	FeatureLevel() uint32
	Rollout() *rollout.Table     // policies: versions, bindings, states; never nil
	Plan() (*scale.Plan, uint64) // how many workers each pool is to have, and the plan's index; nil: none
}

// Changed is closed at the next change of what State gives of policies and of the
// plan. Take it before reading: then no change is missed.
func (s *Store) Changed() <-chan struct{} { return s.machine.Changed() }

// Prefix is which worker holds which KV block, as this node knows it. Only
// ProposeFrame may change it.
func (s *Store) Prefix() *prefix.State { return s.prefix.State() }

// Leading reports whether this node leads the group core, has applied
// everything committed before, and knows its cluster.
func (s *Store) Leading() bool {
	g := s.groups.Load()
	return g != nil && g.core.Leading()
}

// LeadingPrefix is Leading of the group prefix.
func (s *Store) LeadingPrefix() bool {
	g := s.groups.Load()
	return g != nil && g.prefix.Leading()
}

// Leader is the node that leads the group core, and where its port is; empty
// when none is known.
func (s *Store) Leader() (id, addr string) {
	g := s.groups.Load()
	if g == nil {
		return "", ""
	}
	id, addr, _ = g.core.Leader()
	return id, s.whereIs(id, addr)
}

// PrefixLeader is Leader of the group prefix.
func (s *Store) PrefixLeader() (id, addr string) {
	g := s.groups.Load()
	if g == nil {
		return "", ""
	}
	id, addr, _ = g.prefix.Leader()
	return id, s.whereIs(id, addr)
}

// whereIs is a node's address: where it was met, or else what the configuration
// says.
func (s *Store) whereIs(id, configured string) string {
	if id == s.cfg.NodeID && s.cfg.Advertise != "" {
		return s.cfg.Advertise
	}
	if s.net != nil {
		if addr, ok := s.net.book.Resolve(id); ok {
			return addr
		}
	}
	return configured
}

// WaitLeader returns when the cluster has a leader, as far as this node knows,
// or with ctx's error or the fault. A leader of a node's own has begun its work.
func (s *Store) WaitLeader(ctx context.Context) error {
	return s.waitUntil(ctx, "no leader", func() bool {
		id, _ := s.Leader()
		return id != "" && (id != s.cfg.NodeID || s.Leading())
	})
}

// WaitReady returns when the node is ready, or with ctx's error or the fault.
func (s *Store) WaitReady(ctx context.Context) error {
	err := s.waitUntil(ctx, "not ready", func() bool { return s.Ready() == nil })
	if why := s.Ready(); err != nil && why != nil {
		return fmt.Errorf("%w: %w", err, why)
	}
	return err
}

func (s *Store) waitUntil(ctx context.Context, what string, done func() bool) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("raftstore: %s: %w", what, ctx.Err())
		case <-s.faulted:
			return s.fault
		case <-s.ctx.Done():
			return ErrClosed
		case <-tick.C:
		}
	}
	return nil
}

// sleep pauses, and reports whether the pause came to its end before ctx did, or
// the node.
func (s *Store) sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-s.faulted:
	case <-s.ctx.Done():
	}
	return false
}

// NodeID names this node.
func (s *Store) NodeID() string { return s.cfg.NodeID }

// Incarnation names this run of the node.
func (s *Store) Incarnation() string { return s.incarnation }

// ClusterID names the cluster the store belongs to; empty while it is in none.
func (s *Store) ClusterID() string { return s.id.Load().ClusterID }

// FeatureLevel is the committed feature level.
func (s *Store) FeatureLevel() uint32 { return s.machine.FeatureLevel() }

// Faulted is closed when the node has stopped for good: the process, or this
// store, has to be started anew for changes to be possible.
func (s *Store) Faulted() <-chan struct{} { return s.faulted }

// Fault is why the node stopped, or nil. It may wrap ErrRemoved, ErrIDInUse or
// ErrOtherCluster: then starting it again as it is does not help.
func (s *Store) Fault() error {
	select {
	case <-s.faulted:
		return s.fault
	default:
		return nil
	}
}

// trip stops the node for good. What it knows can still be read.
func (s *Store) trip(err error) {
	s.faultOnce.Do(func() {
		s.log.Error("this node has stopped", "node", s.cfg.NodeID, "error", err)
		s.fault = err
		close(s.faulted)
	})
}

// Snapshot writes snapshots of both groups into the data directory now, beside
// those the node writes by itself.
func (s *Store) Snapshot(ctx context.Context) error {
	g := s.groups.Load()
	if g == nil {
		return s.notInCluster()
	}
	return errors.Join(g.core.Snapshot(ctx), g.prefix.Snapshot(ctx))
}

func (s *Store) notInCluster() error {
	if s.ctx.Err() != nil {
		return ErrClosed
	}
	return fmt.Errorf("%w: %s", ErrNotReady, s.home.waitsFor())
}

// handOver is how long a leader that is closed may take to hand over. Without
// it the others need an election.
const handOver = time.Second

// machineFSM fits the planner's machine into a group.
type machineFSM struct {
	*planner.Machine
	maxLevel uint32
}

func (f machineFSM) Snapshot() io.WriterTo { return f.Machine.Snapshot() }

// Digest is the machine's checksum, which is quick.
func (f machineFSM) Digest() uint64 { return f.Checksum() }

// Verify reports why Restore would refuse a snapshot.
func (f machineFSM) Verify(r io.Reader) error { return planner.NewAtLevel(f.maxLevel).Restore(r) }

// bell wakes those who wait for a change of leadership.
type bell struct {
	mu       sync.Mutex
	ch       chan struct{}
	watchers map[int]func()
	last     int // watcher
}

// next is closed by the next ring.
func (b *bell) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

// watch has look called now and by each ring, until leave is called, one call at a
// time: no goroutine has to wait for what hardly ever happens. look must be quick,
// and leave the bell alone.
func (b *bell) watch(look func()) (leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.watchers == nil {
		b.watchers = map[int]func(){}
	}
	b.last++
	id := b.last
	b.watchers[id] = look
	look()
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.watchers, id)
	}
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
	for _, look := range b.watchers {
		look()
	}
}
