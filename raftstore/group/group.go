package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/raftstore/transport"
	"github.com/yardmaster/yardmaster/raftstore/wal"
)

var (
	// ErrNotLeader means that this node does not lead; the entry was not
	// proposed and may be, elsewhere.
	ErrNotLeader = errors.New("not the leader")
	// ErrAmbiguous means that the entry may or may not come to be committed. It
	// may be proposed again under the same request id.
	ErrAmbiguous = errors.New("outcome of the proposal is unknown")
	// ErrBusy means that too much is in flight; the entry was not proposed.
	ErrBusy = errors.New("too many proposals in flight")
	// ErrTransferring means that leadership is being handed over; the entry was
	// not proposed.
	ErrTransferring = errors.New("leadership is being transferred")
	// ErrTransferStuck means that a transfer of leadership neither succeeded nor
	// ended (hashicorp/raft#696). Reopening the group cures it.
	ErrTransferStuck = errors.New("leadership transfer is stuck")
	// ErrClosed means that the group was closed.
	ErrClosed = errors.New("group is closed")
	// ErrLogGap means that the log does not reach back to a snapshot that can be
	// read: entries between them are lost on this node. It must be removed from the
	// group and join again with an empty directory, or get the snapshot back.
	ErrLogGap = errors.New("log does not reach back to a usable snapshot")
)

// Config says how a group runs. The zero numbers mean the defaults.
type Config struct {
	Name   string // "core"; in metrics and logs
	NodeID string
	// Bootstrap are the first voters, this node among them, if the storage is
	// empty. Without any, an empty node waits to be added.
	Bootstrap []Server
	// Nonvoter says that this node never votes. It keeps fewer entries, because
	// it serves them to nobody.
	Nonvoter bool

	Store     wal.Store          // owned by the group from now on
	Snapshots raft.SnapshotStore // where snapshots are kept
	Transport transport.Inner    // owned by the group from now on
	SpoolDir  string             // where Restore keeps a file meanwhile; empty is the system's

	Heartbeat time.Duration // heartbeat and election timeout, 300 ms
	Lease     time.Duration // leader lease, half of Heartbeat
	// WriteDeadline is how long one write may take before the disk counts as
	// hung; 0 is 500 ms while there are several voters and 5 s otherwise.
	WriteDeadline time.Duration
	// SnapshotEvery is how often a snapshot is considered, 2 minutes, and
	// SnapshotEntries how many entries it takes to write one, 8,192.
	SnapshotEvery   time.Duration
	SnapshotEntries uint64
	// TrailingLogs is how many entries stay in the log behind a snapshot, so that
	// a member that was away needs no snapshot: 10,240, a non-voter 1,024.
	TrailingLogs uint64
	// SampleEvery is the distance of digest samples in entries, 1,024.
	SampleEvery uint64
	// FreeBytes tells the free space under the log; nil is not watched. With less
	// than ReserveBytes, 64 MiB, entries are refused and leadership is given up.
	FreeBytes    func() (uint64, error)
	ReserveBytes uint64

	// OnLead is called on each gain of leadership, after all earlier entries
	// were applied, and must return before the node counts as leading. On an
	// error it is called again after a pause.
	OnLead func(ctx context.Context) error
	// OnRestore is called after a snapshot has replaced the state, at start too,
	// with the last entry in it. It must not block, and must not call the group.
	OnRestore func(applied uint64)

	// longestEnqueue is the constant of that name; tests have less patience.
	longestEnqueue time.Duration

	Registry *measure.Registry
	Logger   *slog.Logger
}

const (
	defaultHeartbeat    = 300 * time.Millisecond
	deadlineAmongOthers = 500 * time.Millisecond
	deadlineAlone       = 5 * time.Second

	maxInFlight      = 1024
	snapshotEvery    = 2 * time.Minute
	snapshotEntries  = 8192
	trailingLogs     = 10240
	trailingNonvoter = 1024
	sampleEvery      = 1024
	reserveBytes     = 64 << 20
	maxAppendEntries = 256
	commitTimeout    = 20 * time.Millisecond
)

func (c Config) withDefaults() Config {
	c.Heartbeat = cmp.Or(max(c.Heartbeat, 0), defaultHeartbeat)
	c.Lease = cmp.Or(max(c.Lease, 0), c.Heartbeat/2)
	c.WriteDeadline = max(c.WriteDeadline, 0)
	c.SnapshotEvery = cmp.Or(max(c.SnapshotEvery, 0), snapshotEvery)
	c.SnapshotEntries = cmp.Or(c.SnapshotEntries, snapshotEntries)
	if c.TrailingLogs == 0 {
		c.TrailingLogs = trailingLogs
		if c.Nonvoter {
			c.TrailingLogs = trailingNonvoter
		}
	}
	c.SampleEvery = cmp.Or(c.SampleEvery, sampleEvery)
	c.ReserveBytes = cmp.Or(c.ReserveBytes, reserveBytes)
	if c.OnLead == nil {
		c.OnLead = func(context.Context) error { return nil }
	}
	if c.OnRestore == nil {
		c.OnRestore = func(uint64) {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Group is one member of a Raft group. It is safe for concurrent use.
type Group[R any] struct {
	cfg       Config
	log       *slog.Logger
	raft      *raft.Raft
	store     *wal.Guarded
	snapshots raft.SnapshotStore
	trans     *transport.Guarded
	adapter   *adapter[R]

	slots     chan struct{} // one per call in flight
	transfer  transferWatch
	handing   atomic.Uint64 // last term in which leadership was handed on
	lowDisk   atomic.Bool
	restoring chan struct{} // taken by Restore while the library is at it
	turns     turns
	forcing   atomic.Bool           // a Restore is under way, from its first byte on
	base      atomic.Pointer[label] // what the state was last restored from
	snapped   atomic.Uint64         // last entry of the newest snapshot
	promise   promise               // set when the library starts

	overruling sync.Mutex  // around the end by overrule
	noted      atomic.Bool // forcedIndexKey is set

	passed atomic.Uint64 // no entry up to it is still to be applied
	// membersIndex is the entry of the committed members: the library keeps the
	// number to itself.
	membersIndex atomic.Uint64
	leading      atomic.Bool
	ledTerm      atomic.Uint64 // in which an entry of ours was committed
	rung         chan struct{} // see Changes
	changes      chan bool     // latest word of the library about leadership
	gained       chan bool     // the same, behind the goroutine that always drains it

	faulted   chan struct{}
	faultOnce sync.Once
	fault     error // written before faulted is closed

	ctx    context.Context // the life of the group, not of a call
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	closed sync.Once
	ended  chan struct{} // closed when nothing of the group runs any more
	done   error         // how that went, written before

	metrics metrics
	said    repeats // the library's lines
}

// Open starts the member. It returns when the state on disk is restored, which
// is before a leader is known. Errors wrap wal.ErrStalled, wal.ErrFailed,
// ErrLogGap, the FSM's or the library's.
func Open[R any](ctx context.Context, cfg Config, fsm FSM[R]) (*Group[R], error) {
	cfg = cfg.withDefaults()
	g := &Group[R]{
		cfg: cfg, log: cfg.Logger.With("group", cfg.Name),
		slots:   make(chan struct{}, maxInFlight),
		changes: make(chan bool, 1), gained: make(chan bool, 1),
		rung:      make(chan struct{}, 1),
		faulted:   make(chan struct{}),
		ended:     make(chan struct{}),
		restoring: make(chan struct{}, 1),
		turns:     newTurns(),
		transfer:  transferWatch{limit: longestTransfer + 5*cfg.Heartbeat},
		metrics:   newMetrics(cfg.Registry, cfg.Name),
	}
	g.base.Store(&label{})
	g.ctx, g.cancel = context.WithCancel(context.WithoutCancel(ctx))
	g.adapter = g.adapt(fsm)
	g.snapshots = labelling{cfg.Snapshots, &g.adapter.forced, g.adapter.events.unwritten, g.noteForced}
	g.trans = transport.Guard(cfg.Transport)
	g.store = wal.Guard(cfg.Store, cmp.Or(cfg.WriteDeadline, deadlineAlone), func(err error) { g.trip("storage", err) })
	if err := g.start(ctx); err != nil {
		g.cancel()
		return nil, errors.Join(err, g.trans.Close(), g.store.Close())
	}
	g.trans.Watch(g.raft)
	g.trans.Screen(g.screen)
	g.trans.Hold(g.store.Await)
	g.trans.Pace(g.pace)
	g.store.Behind(g.mayTrail)
	g.listen()
	g.adjust(g.raft.GetConfiguration().Configuration())
	g.tasks.Go(g.drainNotify)
	g.tasks.Go(g.lead)
	g.tasks.Go(g.watch)
	g.tasks.Go(g.snapshotRegularly)
	if !cfg.Nonvoter {
		g.tasks.Go(g.noticeSilence)
	}
	return g, nil
}

func (g *Group[R]) adapt(fsm FSM[R]) *adapter[R] {
	a := &adapter[R]{fsm: fsm, fault: g.trip, samples: &sampler{every: g.cfg.SampleEvery}}
	if d, ok := fsm.(Digester); ok {
		a.samples.digest = d.Digest
	}
	a.events = events{
		configured: func(index uint64, c raft.Configuration) {
			g.membersIndex.Store(index)
			g.adjust(c)
		},
		restored: func(applied uint64, l label, took time.Duration) {
			raise(&g.passed, l.index)
			raise(&g.snapped, l.index)
			g.base.Store(&l)
			if !g.adapter.forced.Load() && !g.adapter.starting.Load() {
				g.forgetForced()
			}
			g.membersIndex.Store(l.members)
			g.metrics.restoreSeconds.Observe(took.Seconds())
			g.cfg.OnRestore(applied)
		},
		newest: func() uint64 { return g.base.Load().index },
		persisted: func(index uint64, bytes int64, took time.Duration) {
			raise(&g.snapped, index)
			g.metrics.snapshotBytes.Set(float64(bytes))
			g.metrics.snapshotSeconds.Observe(took.Seconds())
		},
		unwritten: func(err error) {
			g.metrics.snapshotFailures.Inc()
			g.log.Error("snapshot was not written; the log grows until one is", "error", err)
		},
	}
	return a
}

// start builds the library's node on a goroutine of its own, which the store's
// guard may end.
func (g *Group[R]) start(ctx context.Context) error {
	type outcome struct {
		node *raft.Raft
		err  error
	}
	result := make(chan outcome, 1)
	go func() {
		var o outcome
		o.err = errors.New("the library's start was cut short")
		defer func() { result <- o }()
		o.node, o.err = g.newNode()
	}()
	select {
	case o := <-result:
		if o.err != nil {
			return fmt.Errorf("start raft group %s: %w", g.cfg.Name, errors.Join(g.Fault(), o.err))
		}
		g.raft = o.node
		return nil
	case <-ctx.Done():
		// Reads have no deadline of their own. What the goroutine still builds
		// is shut down when it appears.
		go func() {
			if o := <-result; o.node != nil {
				_ = o.node.Shutdown().Error()
			}
		}()
		return fmt.Errorf("start raft group %s: %w", g.cfg.Name, ctx.Err())
	}
}

func (g *Group[R]) newNode() (*raft.Raft, error) {
	conf := g.cfg.library(g.log)
	conf.Logger = hcLogger{Logger: hclog.NewNullLogger(), slog: g.log, said: &g.said}
	conf.NotifyCh = g.changes
	if len(g.cfg.Bootstrap) > 0 {
		if err := g.bootstrap(conf); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(g.dropUnfinished(), g.dropOverruled()); err != nil {
		return nil, err
	}
	g.promise = readPromise(g.store)
	if err := g.findFloor(); err != nil {
		return nil, err
	}
	g.adapter.starting.Store(true)
	node, err := raft.NewRaft(conf, g.adapter, g.store, g.store, g.snapshots, impatient{g.trans, g.cfg.Heartbeat, g.promise})
	if err != nil {
		return nil, errors.Join(g.adapter.refused, err)
	}
	g.adapter.starting.Store(false)
	return node, nil
}

// findFloor notes where the log begins, so that the library does not start from
// a snapshot that is older than that: it would look for the entries between and
// panic. Snapshots end up missing when they were damaged.
func (g *Group[R]) findFloor() error {
	first, err := g.store.FirstIndex()
	if err != nil {
		return err
	}
	list, err := g.snapshots.List()
	if err != nil {
		return err
	}
	if len(list) == 0 && first > 1 {
		return fmt.Errorf("%w: there is none and the log begins with entry %d", ErrLogGap, first)
	}
	g.adapter.floor = first
	return nil
}

// library is the library's configuration.
func (c *Config) library(log *slog.Logger) *raft.Config {
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(c.NodeID)
	conf.HeartbeatTimeout, conf.ElectionTimeout = c.Heartbeat, c.Heartbeat+1 // lookNow needs the nanosecond
	conf.LeaderLeaseTimeout = c.Lease
	conf.CommitTimeout = commitTimeout
	conf.MaxAppendEntries = maxAppendEntries
	conf.BatchApplyCh = true
	conf.ShutdownOnRemove = false
	conf.TrailingLogs = c.TrailingLogs
	conf.SnapshotInterval, conf.SnapshotThreshold = neverByItself, c.SnapshotEntries
	conf.Logger = NewHCLog(log)
	conf.NoLegacyTelemetry = true
	return conf
}

func (g *Group[R]) bootstrap(conf *raft.Config) error {
	exists, err := raft.HasExistingState(g.store, g.store, g.snapshots)
	if err != nil || exists {
		return err
	}
	return raft.BootstrapCluster(conf, g.store, g.store, g.snapshots, g.trans, configuration(g.cfg.Bootstrap))
}

// Leading reports whether this node leads and has applied everything committed
// before its term.
func (g *Group[R]) Leading() bool { return g.leading.Load() }

// Faulted is closed when the group has stopped for good.
func (g *Group[R]) Faulted() <-chan struct{} { return g.faulted }

// Fault is why the group stopped, or nil.
func (g *Group[R]) Fault() error {
	select {
	case <-g.faulted:
		return g.fault
	default:
		return nil
	}
}

// Status is where the member stands.
type Status struct {
	State   string // Follower, Candidate, Leader, Shutdown
	Term    uint64
	Last    uint64 // last entry in the log
	Commit  uint64
	Applied uint64
	Leader  string // node id, empty when unknown
}

// Status reads the member's position; its fields are not of one instant.
func (g *Group[R]) Status() Status {
	_, leader := g.raft.LeaderWithID()
	return Status{
		State: g.raft.State().String(), Term: g.raft.CurrentTerm(), Last: g.raft.LastIndex(),
		Commit: g.raft.CommitIndex(), Applied: g.raft.AppliedIndex(), Leader: string(leader),
	}
}

// Close stops the member within ctx. What the library does not end in time is
// left to end by itself, and the error says so; the transport is closed in any
// case, so that another member may take its place on the port. It may be called
// again, to wait for longer.
func (g *Group[R]) Close(ctx context.Context) error {
	g.closed.Do(func() {
		g.cancel()
		g.leading.Store(false)
		g.metrics.leader.Set(0)
		go g.shutdown()
	})
	select {
	case <-g.ended:
		return g.done
	default:
	}
	select {
	case <-g.ended:
		return g.done
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("raft group %s did not shut down: %w", g.cfg.Name, ctx.Err()), g.trans.Close())
	}
}

// shutdown takes as long as the library and the disk do.
func (g *Group[R]) shutdown() {
	defer close(g.ended)
	g.quiesce()
	g.restoring <- struct{}{} // the library panics if it is shut down in a forced restore
	err := g.raft.Shutdown().Error()
	<-g.restoring
	err = errors.Join(err, g.trans.Close())
	g.tasks.Wait()
	g.done = errors.Join(err, g.store.Close())
}

// quiesce gives calls under way a moment to be answered: one that the library
// finds in its queue at its shutdown never is.
func (g *Group[R]) quiesce() {
	for end := time.Now().Add(2 * g.cfg.Heartbeat); len(g.slots) > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// trip stops the group for good. It does not block.
func (g *Group[R]) trip(guard string, err error) {
	g.faultOnce.Do(func() {
		g.cfg.Registry.Counter(measure.RaftGuardTrips, g.cfg.Name, guard).Inc()
		g.log.Error("raft group stopped; restart the process to bring it back", "guard", guard, "error", err)
		g.leading.Store(false)
		g.fault = err
		close(g.faulted)
		// A node that cannot store must not stand in elections either.
		// Close is waited for by whoever closes the transport next.
		go func() { _ = g.trans.Close() }()
	})
}
