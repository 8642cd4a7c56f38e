package group

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"github.com/hashicorp/raft"
)

// ErrSuperseded means that a snapshot was not finished because a newer state had
// replaced the one in it meanwhile.
var ErrSuperseded = errors.New("snapshot is older than one that was restored meanwhile")

// busy is an ErrBusy in words of its own.
type busy string

func (b busy) Error() string      { return string(b) }
func (busy) Is(target error) bool { return target == ErrBusy }

// errRestoring refuses a restore beside another.
const errRestoring busy = "another restore is under way"

// turns has the library do one thing with snapshots at a time: write one, install
// the leader's, or restore one by force.
//
// The library does the first on a goroutine of its own and notes at its end which
// snapshot is its newest. If another was restored meanwhile, that note goes back
// behind an index that a forced restore leaves empty in the log: a leader then
// finds no entry before the next one, and sends its snapshot to every follower
// for ever.
type turns struct{ taken chan struct{} }

func newTurns() turns { return turns{make(chan struct{}, 1)} }

func (t turns) take(ctx context.Context) error {
	select {
	case t.taken <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t turns) end() { <-t.taken }

// screen looks at what peers ask before the library sees it.
func (g *Group[R]) screen(rpc raft.RPC, pass func(raft.RPC)) {
	switch req := rpc.Command.(type) {
	case *raft.AppendEntriesRequest:
		if err := g.overrule(req); err != nil {
			rpc.Respond(&raft.AppendEntriesResponse{}, err)
			return
		}
	case *raft.RequestVoteRequest:
		if !g.promise.kept(req.LastLogIndex, req.LastLogTerm) {
			rpc.Respond(&raft.RequestVoteResponse{}, errPromised)
			return
		}
	case *raft.RequestPreVoteRequest:
		if !g.promise.kept(req.LastLogIndex, req.LastLogTerm) {
			rpc.Respond(&raft.RequestPreVoteResponse{}, errPromised)
			return
		}
	case *raft.InstallSnapshotRequest:
		g.tasks.Go(func() { g.install(rpc, pass) })
		return
	}
	pass(rpc)
}

// longestTurn bounds the wait for a snapshot that is being written, for one that
// the leader wants installed: it comes again.
const longestTurn = time.Minute

// install lets a snapshot through when it is its turn, which ends with the
// library's answer.
func (g *Group[R]) install(rpc raft.RPC, pass func(raft.RPC)) {
	ctx, cancel := context.WithTimeout(g.ctx, longestTurn)
	defer cancel()
	to := rpc.RespChan
	if err := g.turns.take(ctx); err != nil {
		if rpc.Reader != nil { // what follows on the connection lies behind it
			_, _ = io.Copy(io.Discard, rpc.Reader)
		}
		rpc.Respond(nil, errors.Join(busy("a snapshot is being written"), err))
		return
	}
	defer g.turns.end()
	answer := make(chan raft.RPCResponse, 1)
	rpc.RespChan = answer
	pass(rpc)
	select {
	case a := <-answer:
		to <- a
	case <-g.ctx.Done():
		to <- raft.RPCResponse{Error: ErrClosed}
	}
}

// snapshotRegularly writes a snapshot, as the library would on its own, but in
// turn.
func (g *Group[R]) snapshotRegularly() {
	for {
		pause := g.cfg.SnapshotEvery + rand.N(g.cfg.SnapshotEvery) // members do not all write at once
		select {
		case <-time.After(pause):
		case <-g.faulted:
			return
		case <-g.ctx.Done():
			return
		}
		last := g.raft.LastIndex()
		if last-min(g.snapped.Load(), last) < g.cfg.SnapshotEntries {
			continue
		}
		if err := g.Snapshot(g.ctx); err != nil {
			g.log.Debug("no snapshot was written", "error", err)
		}
	}
}

// neverByItself is the library's interval for snapshots.
const neverByItself = 10 * 365 * 24 * time.Hour
