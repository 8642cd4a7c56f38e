package group

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// ReadIndex is an entry up to which a state contains every proposal that was
// acknowledged before the call: a reader anywhere that waits for it, see
// [Group.WaitApplied], reads linearizably. It writes nothing and costs a round
// of heartbeats, which concurrent calls share. Only the leader can. Errors wrap
// ErrNotLeader, ErrBusy or ErrClosed, or are ctx's.
//
// An entry of this term has been committed before, or the commit index may lack
// what earlier leaders acknowledged. The index is taken before leadership is
// verified, by calls that began later: the library also counts answers that are
// late, and a process that was stopped finds such answers when it goes on, while
// another leads. The term is the same afterwards, or the verified leadership is
// another than the index is of.
func (g *Group[R]) ReadIndex(ctx context.Context) (uint64, error) {
	term := g.raft.CurrentTerm()
	if g.ledTerm.Load() != term || g.raft.State() != raft.Leader {
		return 0, fmt.Errorf("read index: %w", ErrNotLeader)
	}
	index, mark := g.raft.CommitIndex(), g.trans.Mark()
	for {
		if err := g.do(ctx, func() error { return g.raft.VerifyLeader().Error() }); err != nil {
			return 0, fmt.Errorf("read index: %w", readError(err))
		}
		if g.raft.CurrentTerm() != term {
			return 0, fmt.Errorf("read index: %w", ErrNotLeader)
		}
		if g.followed(mark, term) {
			return index, nil
		}
		select {
		case <-time.After(pauseVerify):
		case <-ctx.Done():
			return 0, fmt.Errorf("read index: %w", ctx.Err())
		}
	}
}

// pauseVerify is between two attempts to verify leadership.
const pauseVerify = 200 * time.Microsecond

// followed reports whether a majority has followed us in the term since a mark.
func (g *Group[R]) followed(mark, term uint64) bool {
	all, following := 0, 0
	for _, s := range g.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		all++
		if s.ID == raft.ServerID(g.cfg.NodeID) || g.trans.AnsweredSince(mark, s.ID, term) {
			following++
		}
	}
	return following > all/2
}

// readError says what hindered a read, which has no outcome to be unsure of.
func readError(err error) error {
	for _, known := range []error{ErrBusy, ErrClosed, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrNotLeader, err)
}

// pollApplied is how often WaitApplied looks.
const pollApplied = time.Millisecond

// WaitApplied returns when the state here contains every committed entry up to
// index. Errors wrap ErrClosed or are ctx's.
func (g *Group[R]) WaitApplied(ctx context.Context, index uint64) error {
	if g.hasApplied(index) {
		return nil
	}
	tick := time.NewTicker(pollApplied)
	defer tick.Stop()
	for !g.hasApplied(index) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for entry %d: %w", index, ctx.Err())
		case <-g.faulted:
			return fmt.Errorf("%w: %w", ErrClosed, g.fault)
		case <-g.ctx.Done():
			return ErrClosed
		}
	}
	return nil
}

// hasApplied reports whether nothing up to index is still to be applied. The
// FSM sees commands only, so after the last one that it has applied there may be
// entries that it will never see.
func (g *Group[R]) hasApplied(index uint64) bool {
	done := max(g.adapter.applied.Load(), g.passed.Load())
	if done >= index {
		return true
	}
	if g.raft.AppliedIndex() < index {
		return false // not even given to the FSM
	}
	var l raft.Log
	for at := index; at > done; at-- {
		err := g.store.Entry(at, &l)
		if errors.Is(err, raft.ErrLogNotFound) {
			break // compacted, because a snapshot of the state here contains it
		}
		if err != nil || l.Type == raft.LogCommand {
			return g.adapter.applied.Load() >= at
		}
	}
	raise(&g.passed, index)
	return true
}

// raise makes v at least n.
func raise(v *atomic.Uint64, n uint64) {
	for old := v.Load(); old < n; old = v.Load() {
		if v.CompareAndSwap(old, n) {
			return
		}
	}
}

// CommitIndex is the last entry that this node knows to be committed.
func (g *Group[R]) CommitIndex() uint64 { return g.raft.CommitIndex() }

// Applied is the last entry that the FSM contains.
func (g *Group[R]) Applied() uint64 { return g.adapter.applied.Load() }

// LastContact is when this node last heard of a leader, now if it leads, and
// zero if it never has.
func (g *Group[R]) LastContact() time.Time {
	if g.raft.State() == raft.Leader {
		return time.Now()
	}
	return g.raft.LastContact()
}
