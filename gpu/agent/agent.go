package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/wire/control"
	"github.com/yardmaster/yardmaster/core/wire/control/rpc"
)

// Agent speaks for one worker. Run it once; the other methods may be called
// from anywhere.
type Agent struct {
	cfg      Config
	planners *planners

	epoch    atomic.Uint64
	draining atomic.Bool
	// told is closed when the planner knows that the worker drains.
	told     chan struct{}
	tellOnce sync.Once
	askOnce  sync.Once
	wake     chan struct{} // room for one: something to tell at once

	started atomic.Bool
	stop    chan struct{} // closed to end Run before leaving
	stopped sync.Once
	ended   chan struct{} // closed when Run has ended

	// Of Run's goroutine.
	registered bool // the planner is believed to know the epoch
	superseded bool // another incarnation had the id when last heard
	yielded    bool // so the planner confirmed, and it was logged
	every      time.Duration
	ttl        time.Duration // of the lease
	held       time.Time     // when it was last granted or renewed
	failures   int
	cause      string // of the failure last logged
	clusterID  string
}

// New checks the configuration. It does not connect yet.
func New(cfg Config) (*Agent, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	p, err := dial(&cfg)
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	a := &Agent{
		cfg: cfg, planners: p, every: defaultRenewEvery, ttl: defaultLeaseTTL,
		told: make(chan struct{}), wake: make(chan struct{}, 1),
		stop: make(chan struct{}), ended: make(chan struct{}),
	}
	a.draining.Store(cfg.Worker.Draining)
	return a, nil
}

// Epoch is the worker's current epoch: 0 before the first registration and
// after another worker has taken the id. While the planner is away it stays.
func (a *Agent) Epoch() fleet.Epoch { return fleet.Epoch(a.epoch.Load()) }

// Incarnation is the worker's incarnation.
func (a *Agent) Incarnation() string { return a.cfg.Worker.Incarnation }

// Draining reports whether the worker is to take no new work, by its own wish
// or the planner's.
func (a *Agent) Draining() bool { return a.draining.Load() }

// Run registers the worker and keeps it registered until ctx ends or Drain has
// finished. It returns nil then: an absent planner is no error. It must be
// called at most once.
func (a *Agent) Run(ctx context.Context) error {
	if a.started.Swap(true) {
		return errors.New("agent: Run was called twice")
	}
	defer close(a.ended)
	ctx, cancel := context.WithCancel(ctx)
	// Leaving must not wait for a call to a planner that hangs.
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-a.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	defer func() { cancel(); <-watched }()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
		case <-timer.C:
		}
		timer.Reset(a.step(ctx))
	}
}

// step says to the planner what there is to say and returns the pause until the
// next time.
func (a *Agent) step(ctx context.Context) time.Duration {
	err := a.speak(ctx)
	if ctx.Err() != nil {
		return time.Hour
	}
	if err != nil {
		a.failures++
		a.logFailure(err)
		return a.backoff()
	}
	a.failures = 0
	a.logRecovery()
	if a.superseded {
		return jitter(a.cfg.MaxBackoff)
	}
	if !a.registered {
		return 0
	}
	return jitter(a.every)
}

func (a *Agent) speak(ctx context.Context) error {
	if !a.registered {
		return a.register(ctx)
	}
	if err := a.renew(ctx); err != nil {
		return err
	}
	if a.registered && a.draining.Load() {
		return a.tellDraining(ctx)
	}
	return nil
}

// backoff doubles with each failure. While the lease may still run, the pauses
// stay short, so that a new leader is found as soon as there is one; then a
// registered worker waits no longer than its renewal period.
func (a *Agent) backoff() time.Duration {
	limit := a.cfg.MaxBackoff
	switch {
	case a.registered && time.Since(a.held) < a.ttl:
		limit = min(limit, a.every, leaseBackoff)
	case a.registered:
		limit = min(limit, a.every)
	}
	d := a.cfg.MinBackoff << min(a.failures-1, 20)
	return jitter(min(d, limit))
}

// jitter is between half of d and d.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2+1)
}

func (a *Agent) register(ctx context.Context) error {
	w := a.cfg.Worker
	w.Draining = a.draining.Load()
	// Once superseded, the agent waits for the id to be free: two workers that
	// were given one id must not take it from each other for ever.
	req := &control.RegisterRequest{Worker: control.FromWorker(&w), IfAbsent: a.superseded}
	var resp *control.RegisterResponse
	err := a.planners.each(ctx, callTimeout, func(ctx context.Context, c rpc.ControlClient) (err error) {
		resp, err = c.Register(ctx, req)
		return err
	})
	switch {
	case a.superseded && status.Code(err) == codes.AlreadyExists:
		a.giveWay()
		return nil // still taken
	case err != nil:
		return err
	case resp.GetEpoch() == 0:
		return errors.New("planner granted no epoch")
	}
	a.superseded, a.yielded, a.registered = false, false, true
	a.setTimes(resp.GetRenewEveryMs(), resp.GetLeaseTtlMs())
	a.setEpoch(fleet.Epoch(resp.GetEpoch()))
	a.noteCluster(resp.GetClusterId())
	if w.Draining {
		a.markTold()
	}
	return nil
}

func (a *Agent) renew(ctx context.Context) error {
	req := &control.RenewRequest{Id: string(a.cfg.Worker.ID), Epoch: a.epoch.Load(), Stats: control.FromStats(a.cfg.Stats())}
	var resp *control.RenewResponse
	err := a.planners.each(ctx, a.renewTimeout(), func(ctx context.Context, c rpc.ControlClient) (err error) {
		resp, err = c.Renew(ctx, req)
		return err
	})
	if err != nil {
		return err
	}
	a.setTimes(resp.GetRenewEveryMs(), resp.GetLeaseTtlMs())
	switch resp.GetState() {
	case control.LeaseState_LEASE_STATE_HELD:
		if resp.GetDraining() {
			a.askedToDrain()
		}
	case control.LeaseState_LEASE_STATE_UNKNOWN:
		a.cfg.Logger.Warn("planner does not know this worker's epoch; registering again", "worker", a.cfg.Worker.ID, "epoch", req.Epoch)
		a.registered = false
	case control.LeaseState_LEASE_STATE_SUPERSEDED:
		// Another incarnation has the id, or the planners were given back a state in
		// which this one had another epoch. Asking for the id tells.
		a.registered, a.superseded = false, true
		return a.reclaim(ctx)
	case control.LeaseState_LEASE_STATE_UNSPECIFIED:
		fallthrough
	default:
		return fmt.Errorf("planner answered a renewal with state %d", resp.GetState())
	}
	return nil
}

// reclaim asks for the id that a renewal was refused under.
func (a *Agent) reclaim(ctx context.Context) error {
	before := a.Epoch()
	err := a.register(ctx)
	if err != nil {
		a.setEpoch(0) // whose it is is not known
		return err
	}
	if a.registered {
		a.cfg.Logger.Info("the planners went back to another state; registered again", "worker", a.cfg.Worker.ID, "was", uint64(before), "epoch", a.epoch.Load())
	}
	return nil
}

// giveWay notes that another worker has the id.
func (a *Agent) giveWay() {
	if !a.yielded {
		a.yielded = true
		a.cfg.Logger.Error("another worker has registered under this id; give each worker its own", "worker", a.cfg.Worker.ID)
	}
	a.setEpoch(0)
}

// tellDraining makes the drain known, once.
func (a *Agent) tellDraining(ctx context.Context) error {
	select {
	case <-a.told:
		return nil
	default:
	}
	req := &control.DrainRequest{Id: string(a.cfg.Worker.ID), Epoch: a.epoch.Load()}
	err := a.planners.each(ctx, callTimeout, func(ctx context.Context, c rpc.ControlClient) error {
		_, err := c.Drain(ctx, req)
		return err
	})
	if status.Code(err) == codes.NotFound {
		a.registered = false // registering again says it too
		return nil
	}
	if err == nil {
		a.markTold()
	}
	return err
}

func (a *Agent) markTold() { a.tellOnce.Do(func() { close(a.told) }) }

func (a *Agent) askedToDrain() {
	a.markTold()
	if !a.draining.Swap(true) {
		a.askOnce.Do(a.cfg.OnDrain)
	}
}

// setTimes takes what a planner says of the lease that it has just granted or
// renewed.
func (a *Agent) setTimes(everyMS, ttlMS int64) {
	a.held = time.Now()
	if everyMS > 0 {
		a.every = time.Duration(min(everyMS, time.Minute.Milliseconds())) * time.Millisecond
	}
	if ttlMS > 0 {
		a.ttl = time.Duration(min(ttlMS, time.Hour.Milliseconds())) * time.Millisecond
	}
}

// renewTimeout bounds a renewal at one planner. All planners together get half a
// TTL, so that one which accepts calls and never answers is left, and another
// found, before the lease ends.
func (a *Agent) renewTimeout() time.Duration {
	return min(max(a.ttl/time.Duration(2*a.planners.len()), minRenewTimeout), callTimeout)
}

func (a *Agent) setEpoch(e fleet.Epoch) {
	if a.Epoch() == e {
		return
	}
	a.cfg.OnEpoch(e)
	a.epoch.Store(uint64(e))
	if e != 0 {
		a.cfg.Logger.Info("registered", "worker", a.cfg.Worker.ID, "epoch", uint64(e))
	}
}

func (a *Agent) noteCluster(id string) {
	if a.clusterID != "" && a.clusterID != id {
		a.cfg.Logger.Warn("the planner is of another cluster than before", "was", a.clusterID, "is", id)
	}
	a.clusterID = id
}

// logFailure reports a cause when it is new, not at every attempt.
func (a *Agent) logFailure(err error) {
	if cause := err.Error(); cause != a.cause {
		a.cause = cause
		a.cfg.Logger.Warn("planner not reached; serving on and trying again", "worker", a.cfg.Worker.ID, "registered", a.registered, "error", err)
	}
}

func (a *Agent) logRecovery() {
	if a.cause != "" {
		a.cause = ""
		a.cfg.Logger.Info("planner reached again", "worker", a.cfg.Worker.ID)
	}
}

// leaveTimeout bounds the good-bye, which the end of the lease replaces if it
// gets lost.
const leaveTimeout = 3 * time.Second

// Drain takes the worker out of service: it tells the planner, waits for idle
// to return, ends Run and leaves. idle waits until the engine has finished its
// requests and gives up with ctx.
//
// An absent planner delays it by a few seconds only. The error is idle's or
// that of leaving; the worker is out of service in any case.
func (a *Agent) Drain(ctx context.Context, idle func(context.Context) error) error {
	if !a.draining.Swap(true) {
		a.cfg.Logger.Info("draining", "worker", a.cfg.Worker.ID, "epoch", a.epoch.Load())
	}
	select {
	case a.wake <- struct{}{}:
	default:
	}
	a.awaitTold(ctx)
	err := idle(ctx)
	a.stopped.Do(func() { close(a.stop) })
	if a.started.Load() {
		<-a.ended
	}
	return errors.Join(err, a.leave(ctx))
}

func (a *Agent) awaitTold(ctx context.Context) {
	if a.Epoch() == 0 {
		return // nobody has been told of this worker yet
	}
	timer := time.NewTimer(leaveTimeout)
	defer timer.Stop()
	select {
	case <-a.told:
	case <-a.ended:
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (a *Agent) leave(ctx context.Context) error {
	epoch := a.epoch.Load()
	if epoch == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	req := &control.LeaveRequest{Id: string(a.cfg.Worker.ID), Epoch: epoch}
	err := a.planners.each(ctx, callTimeout, func(ctx context.Context, c rpc.ControlClient) error {
		_, err := c.Leave(ctx, req)
		return err
	})
	if err != nil {
		return fmt.Errorf("agent: leave: %w", err)
	}
	a.cfg.Logger.Info("left", "worker", a.cfg.Worker.ID, "epoch", epoch)
	return nil
}

// OpenFeed opens a stream for the worker's KV events at the planner that
// answered last. Whether it takes them, the stream's first answer tells. The
// stream ends with ctx, and with [ErrMoved] when the worker goes over to another
// planner.
func (a *Agent) OpenFeed(ctx context.Context) (rpc.Control_FeedClient, error) {
	stream, err := a.planners.feed(ctx)
	if err != nil {
		return nil, fmt.Errorf("agent: feed: %w", err)
	}
	return stream, nil
}

// Close cuts the connections to the planners. Call it when Run has ended.
func (a *Agent) Close() error { return a.planners.close() }
