package group

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

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
)

// Config says how a group runs. The zero durations mean the defaults.
type Config struct {
	Name   string // "core"; in metrics and logs
	NodeID string
	// Bootstrap makes this node the first and only voter if the storage is empty.
	Bootstrap bool

	Store     wal.Store          // owned by the group from now on
	Snapshots raft.SnapshotStore // where snapshots are kept
	Transport transport.Inner    // owned by the group from now on

	Heartbeat time.Duration // heartbeat and election timeout, 300 ms
	Lease     time.Duration // leader lease, half of Heartbeat
	// WriteDeadline is how long one write may take before the disk counts as
	// hung, 5 s.
	WriteDeadline time.Duration
	// OnLead is called on each gain of leadership, after all earlier entries
	// were applied, and must return before the node counts as leading. On an
	// error it is called again after a pause.
	OnLead func(ctx context.Context) error

	Registry *measure.Registry
	Logger   *slog.Logger
}

const (
	defaultHeartbeat     = 300 * time.Millisecond
	defaultWriteDeadline = 5 * time.Second

	maxInFlight      = 1024
	snapshotEvery    = 2 * time.Minute
	snapshotEntries  = 8192
	trailingLogs     = 10240
	maxAppendEntries = 256
	commitTimeout    = 20 * time.Millisecond
)

func (c Config) withDefaults() Config {
	if c.Heartbeat <= 0 {
		c.Heartbeat = defaultHeartbeat
	}
	if c.Lease <= 0 {
		c.Lease = c.Heartbeat / 2
	}
	if c.WriteDeadline <= 0 {
		c.WriteDeadline = defaultWriteDeadline
	}
	if c.OnLead == nil {
		c.OnLead = func(context.Context) error { return nil }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Group is one member of a Raft group. It is safe for concurrent use.
type Group[R any] struct {
	cfg   Config
	log   *slog.Logger
	raft  *raft.Raft
	store *wal.Guarded
	trans *transport.Guarded

	slots    chan struct{} // one per proposal in flight
	transfer transferWatch

	leading atomic.Bool
	changes chan bool // latest word of the library about leadership
	gained  chan bool // the same, behind the goroutine that always drains it

	faulted   chan struct{}
	faultOnce sync.Once
	fault     error // written before faulted is closed

	ctx    context.Context // the life of the group, not of a call
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	closed sync.Once
	done   error

	metrics metrics
}

type metrics struct {
	applied, leader measure.Gauge
	commit          measure.Histogram
}

// Open starts the member. It returns when the state on disk is restored, which
// is before a leader is known. Errors wrap wal.ErrStalled, wal.ErrFailed, the
// FSM's or the library's.
func Open[R any](ctx context.Context, cfg Config, fsm FSM[R]) (*Group[R], error) {
	cfg = cfg.withDefaults()
	g := &Group[R]{
		cfg: cfg, log: cfg.Logger.With("group", cfg.Name),
		slots:   make(chan struct{}, maxInFlight),
		changes: make(chan bool, 1), gained: make(chan bool, 1),
		faulted:  make(chan struct{}),
		transfer: transferWatch{limit: 5 * cfg.Heartbeat},
		metrics: metrics{
			applied: cfg.Registry.Gauge(measure.RaftApplied, cfg.Name),
			leader:  cfg.Registry.Gauge(measure.RaftLeader, cfg.Name),
			commit:  cfg.Registry.Histogram(measure.RaftCommit, cfg.Name),
		},
	}
	g.ctx, g.cancel = context.WithCancel(context.WithoutCancel(ctx))
	g.trans = transport.Guard(cfg.Transport)
	g.store = wal.Guard(cfg.Store, cfg.WriteDeadline, func(err error) { g.trip("storage", err) })
	if err := g.start(ctx, fsm); err != nil {
		g.cancel()
		return nil, errors.Join(err, g.trans.Close(), g.store.Close())
	}
	g.trans.Watch(g.raft)
	g.tasks.Go(g.drainNotify)
	g.tasks.Go(g.lead)
	return g, nil
}

// start builds the library's node on a goroutine of its own, which the store's
// guard may end.
func (g *Group[R]) start(ctx context.Context, fsm FSM[R]) error {
	type outcome struct {
		node *raft.Raft
		err  error
	}
	result := make(chan outcome, 1)
	go func() {
		var o outcome
		o.err = errors.New("the library's start was cut short")
		defer func() { result <- o }()
		o.node, o.err = g.newNode(fsm)
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

func (g *Group[R]) newNode(fsm FSM[R]) (*raft.Raft, error) {
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(g.cfg.NodeID)
	conf.HeartbeatTimeout, conf.ElectionTimeout = g.cfg.Heartbeat, g.cfg.Heartbeat
	conf.LeaderLeaseTimeout = g.cfg.Lease
	conf.CommitTimeout = commitTimeout
	conf.MaxAppendEntries = maxAppendEntries
	conf.BatchApplyCh = true
	conf.ShutdownOnRemove = false
	conf.TrailingLogs = trailingLogs
	conf.SnapshotInterval, conf.SnapshotThreshold = snapshotEvery, snapshotEntries
	conf.NotifyCh = g.changes
	conf.Logger = NewHCLog(g.log)
	conf.NoLegacyTelemetry = true

	if g.cfg.Bootstrap {
		if err := g.bootstrap(conf); err != nil {
			return nil, err
		}
	}
	a := &adapter[R]{fsm: fsm, fault: g.trip, onStep: func(i uint64) { g.metrics.applied.Set(float64(i)) }}
	node, err := raft.NewRaft(conf, a, g.store, g.store, g.cfg.Snapshots, g.trans)
	if err != nil {
		return nil, err
	}
	return node, nil
}

func (g *Group[R]) bootstrap(conf *raft.Config) error {
	exists, err := raft.HasExistingState(g.store, g.store, g.cfg.Snapshots)
	if err != nil || exists {
		return err
	}
	first := raft.Configuration{Servers: []raft.Server{{ID: conf.LocalID, Address: g.trans.LocalAddr()}}}
	return raft.BootstrapCluster(conf, g.store, g.store, g.cfg.Snapshots, g.trans, first)
}

// Apply proposes entry and waits until it is applied here. Errors wrap
// ErrNotLeader, ErrBusy, ErrTransferring or ErrClosed when the entry was
// certainly not proposed, else ErrAmbiguous, beside ctx's error or the fault.
func (g *Group[R]) Apply(ctx context.Context, entry []byte) (R, error) {
	var none R
	if err := g.acquire(ctx); err != nil {
		return none, err
	}
	start := time.Now()
	// BatchApplyCh makes the library's own timeout soft; ctx is the deadline.
	future := g.raft.Apply(entry, remaining(ctx))
	if err := g.await(ctx, future); err != nil {
		return none, g.proposeError(err)
	}
	g.transfer.clear()
	g.metrics.commit.Observe(time.Since(start).Seconds())
	res, ok := future.Response().(R)
	if !ok { // the FSM was stopped by a fault
		return none, fmt.Errorf("%w: %w", ErrAmbiguous, errors.Join(g.Fault(), ErrCannotApply))
	}
	return res, nil
}

// Barrier waits until every entry committed before it is applied here, which
// makes a following read linearizable. Errors are those of Apply.
func (g *Group[R]) Barrier(ctx context.Context) error {
	if err := g.acquire(ctx); err != nil {
		return err
	}
	if err := g.await(ctx, g.raft.Barrier(remaining(ctx))); err != nil {
		return g.proposeError(err)
	}
	return nil
}

func (g *Group[R]) acquire(ctx context.Context) error {
	select {
	case <-g.faulted:
		return fmt.Errorf("%w: %w", ErrClosed, g.fault)
	case <-g.ctx.Done():
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	default:
	}
	select {
	case g.slots <- struct{}{}:
		return nil
	default:
		return ErrBusy
	}
}

// await waits for the future and gives the slot back when it resolves, which
// may be after await has returned.
func (g *Group[R]) await(ctx context.Context, f raft.Future) error {
	done := make(chan error, 1)
	go func() {
		err := f.Error()
		<-g.slots
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrAmbiguous, ctx.Err())
	case <-g.faulted:
		return fmt.Errorf("%w: %w", ErrAmbiguous, g.fault)
	}
}

func (g *Group[R]) proposeError(err error) error {
	switch {
	case errors.Is(err, ErrAmbiguous):
		return err
	case errors.Is(err, raft.ErrNotLeader):
		return fmt.Errorf("%w: %w", ErrNotLeader, err)
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return fmt.Errorf("%w: %w", ErrBusy, err)
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		if stuck := g.transfer.seen(time.Now()); stuck != nil {
			g.trip("transfer_stuck", stuck)
		}
		return fmt.Errorf("%w: %w", ErrTransferring, err)
	default: // leadership lost, shutdown, aborted by a restore, storage
		return fmt.Errorf("%w: %w", ErrAmbiguous, err)
	}
}

// remaining is the time ctx leaves, never 0 or less: to the library that would
// mean for ever.
func remaining(ctx context.Context) time.Duration {
	if d, ok := ctx.Deadline(); ok {
		return max(time.Until(d), time.Millisecond)
	}
	return time.Hour
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

// Snapshot writes a snapshot now.
func (g *Group[R]) Snapshot(ctx context.Context) error {
	if err := g.acquire(ctx); err != nil {
		return err
	}
	err := g.await(ctx, g.raft.Snapshot())
	if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return nil
	}
	return err
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
// left behind, and the error says so.
func (g *Group[R]) Close(ctx context.Context) error {
	g.closed.Do(func() { g.done = g.shutdown(ctx) })
	return g.done
}

func (g *Group[R]) shutdown(ctx context.Context) error {
	g.cancel()
	g.leading.Store(false)
	g.metrics.leader.Set(0)
	finished := make(chan error, 1)
	go func() {
		err := g.raft.Shutdown().Error()
		err = errors.Join(err, g.trans.Close())
		g.tasks.Wait()
		finished <- errors.Join(err, g.store.Close())
	}()
	select {
	case err := <-finished:
		return err
	case <-ctx.Done():
		return fmt.Errorf("raft group %s did not shut down: %w", g.cfg.Name, ctx.Err())
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
