package group

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster/yardmaster/raftstore/transport"
)

// transferWatch notices a transfer of leadership that never ends: the library
// can leave its mark set when it loses leadership meanwhile, and then refuses
// every entry once it leads again (hashicorp/raft#696).
type transferWatch struct {
	limit time.Duration

	mu    sync.Mutex
	since time.Time // first refusal since the last success; zero is none
	last  time.Time // latest refusal
}

// longestTransfer is how long the library may honestly refuse entries for one
// transfer, beside its own timers: what a call of a peer that hangs may take.
const longestTransfer = 3500 * time.Millisecond

// longestSilence is between two refusals of one series. While there is one the
// group proposes something itself each second, so that after a longer silence the
// process was stopped, or the leadership lost, and nothing is known any more.
const longestSilence = 2500 * time.Millisecond

// seen records a refusal and returns ErrTransferStuck once refusals have gone
// on for longer than the limit.
func (w *transferWatch) seen(now time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since.IsZero() || now.Sub(w.last) > longestSilence {
		w.since = now
	}
	w.last = now
	if d := now.Sub(w.since); d > w.limit {
		return fmt.Errorf("%w: proposals refused for %v", ErrTransferStuck, d)
	}
	return nil
}

// suspicious reports whether the latest proposal was refused.
func (w *transferWatch) suspicious() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.since.IsZero()
}

// clear records that the group accepts entries.
func (w *transferWatch) clear() {
	w.mu.Lock()
	w.since = time.Time{}
	w.mu.Unlock()
}

// lookAtTransfer proposes a barrier while a proposal was refused for a transfer,
// so that the end of a transfer is seen in an idle group, and one without end.
func (g *Group[R]) lookAtTransfer() {
	switch {
	case !g.transfer.suspicious():
	case g.raft.State() != raft.Leader: // what it refuses when it leads again is a new series
		g.transfer.clear()
	default:
		ctx, cancel := context.WithTimeout(g.ctx, watchEvery/2)
		defer cancel()
		_ = g.Barrier(ctx) // it tells the watch
	}
}

// impatient is a transport that does not wait long for a peer that is to take
// over: until it answers the library refuses every entry. And it does not ask for
// votes against the promise.
type impatient struct {
	*transport.Guarded
	limit   time.Duration
	promise promise
}

// RequestVote calls a peer.
func (i impatient) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if !i.promise.kept(args.LastLogIndex, args.LastLogTerm) {
		return errPromised
	}
	return i.Guarded.RequestVote(id, target, args, resp)
}

// RequestPreVote calls a peer.
func (i impatient) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if !i.promise.kept(args.LastLogIndex, args.LastLogTerm) {
		return errPromised
	}
	return i.Guarded.RequestPreVote(id, target, args, resp)
}

// TimeoutNow calls a peer. What it answers late is lost.
func (i impatient) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	var late raft.TimeoutNowResponse
	done := make(chan error, 1)
	go func() { done <- i.Guarded.TimeoutNow(id, target, args, &late) }() // ends with the transport's own deadline
	timer := time.NewTimer(i.limit)
	defer timer.Stop()
	select {
	case err := <-done:
		*resp = late
		return err
	case <-timer.C:
		return fmt.Errorf("%s does not answer within %v", id, i.limit)
	}
}
