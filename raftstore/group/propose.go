package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// Pending is a proposal on its way.
type Pending[R any] struct {
	group *Group[R]
	done  chan struct{}
	res   R
	err   error
}

// Submit proposes entry and does not wait. Entries of one caller are applied in
// the order of its calls. Errors wrap ErrNotLeader, ErrBusy, ErrLowDisk or
// ErrClosed; the entry was then not proposed. The entry must not change
// afterwards.
func (g *Group[R]) Submit(ctx context.Context, entry []byte) (*Pending[R], error) {
	if g.lowDisk.Load() {
		return nil, ErrLowDisk
	}
	if err := g.acquire(ctx); err != nil {
		return nil, err
	}
	p := &Pending[R]{group: g, done: make(chan struct{})}
	g.propose(ctx, entry, func(res R, err error) {
		p.res, p.err = res, err
		close(p.done)
	})
	return p, nil
}

// roomAhead is how many calls in flight leave room in the library's queue: it holds
// as many as go into a request, and what it holds has a slot.
const roomAhead = maxAppendEntries - 8

// Start is Submit for a caller that may not wait for a place in the library's queue:
// without one the error wraps ErrBusy. What Wait would give goes to done, which is
// called once, by a goroutine of its own, and not at all when a fault keeps the
// library from answering: see Faulted.
func (g *Group[R]) Start(entry []byte, done func(R, error)) error {
	if g.lowDisk.Load() {
		return ErrLowDisk
	}
	if err := g.acquire(g.ctx); err != nil {
		return err
	}
	if len(g.slots) > roomAhead {
		<-g.slots
		return ErrBusy
	}
	g.propose(g.ctx, entry, done)
	return nil
}

// propose hands an entry to the library, with a slot that was acquired.
func (g *Group[R]) propose(ctx context.Context, entry []byte, done func(R, error)) {
	start := time.Now()
	// BatchApplyCh makes the library's own timeout soft; Wait's ctx is the deadline.
	future := g.raft.Apply(entry, g.enqueue(ctx))
	go func() {
		err := future.Error()
		<-g.slots
		done(g.settle(future, err, start))
	}()
}

func (g *Group[R]) settle(future raft.ApplyFuture, err error, start time.Time) (R, error) {
	var none R
	if err != nil {
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

// Wait returns when the entry is applied here. Errors wrap ErrNotLeader, ErrBusy,
// ErrTransferring or ErrClosed when the entry was certainly not proposed, else
// ErrAmbiguous, beside ctx's error or the fault.
func (p *Pending[R]) Wait(ctx context.Context) (R, error) {
	var none R
	select {
	case <-p.done:
		return p.res, p.err
	case <-ctx.Done():
		return none, fmt.Errorf("%w: %w", ErrAmbiguous, ctx.Err())
	case <-p.group.faulted:
		return none, fmt.Errorf("%w: %w", ErrAmbiguous, p.group.fault)
	}
}

// Apply proposes entry and waits until it is applied here. Errors are those of
// Submit and Wait.
func (g *Group[R]) Apply(ctx context.Context, entry []byte) (R, error) {
	p, err := g.Submit(ctx, entry)
	if err != nil {
		var none R
		return none, err
	}
	return p.Wait(ctx)
}

// Barrier waits until every entry committed before it is applied here. It writes
// an entry; [Group.ReadIndex] does not. Errors are those of Apply.
func (g *Group[R]) Barrier(ctx context.Context) error {
	if g.lowDisk.Load() {
		return ErrLowDisk
	}
	err := g.do(ctx, func() error { return g.raft.Barrier(g.enqueue(ctx)).Error() })
	if err != nil {
		return g.proposeError(err)
	}
	g.transfer.clear()
	return nil
}

// do makes a call of the library that may block beyond ctx. It then goes on, and
// keeps its slot, after do has returned ErrAmbiguous.
func (g *Group[R]) do(ctx context.Context, call func() error) error {
	if err := g.acquire(ctx); err != nil {
		return err
	}
	return g.run(ctx, call)
}

// run is do with a slot that was acquired.
func (g *Group[R]) run(ctx context.Context, call func() error) error {
	done := make(chan error, 1)
	go func() {
		err := call()
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

// acquire takes a slot, which whoever sees the library's answer gives back.
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
	default:
		return ErrBusy
	}
	if g.ctx.Err() != nil { // closed meanwhile, and quiesce may not have seen the slot
		<-g.slots
		return ErrClosed
	}
	return nil
}

// proposeError says in this package's words what became of a call.
func (g *Group[R]) proposeError(err error) error {
	switch {
	case errors.Is(err, ErrAmbiguous), errors.Is(err, ErrBusy), errors.Is(err, ErrClosed), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
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

// longestEnqueue bounds the wait of a call for a place in the library's queue.
const longestEnqueue = 10 * time.Second

// enqueue is how long a call may wait for a place in the library's queue: what
// ctx leaves, and never 0 or less, which to the library would mean for ever.
func (g *Group[R]) enqueue(ctx context.Context) time.Duration {
	longest := cmp.Or(g.cfg.longestEnqueue, longestEnqueue)
	if d, ok := ctx.Deadline(); ok {
		return min(max(time.Until(d), time.Millisecond), longest)
	}
	return longest
}
