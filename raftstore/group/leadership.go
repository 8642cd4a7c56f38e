package group

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Changes has a value when the leader, as this node knows it, the term or Leading
// may have changed since the last one was taken. It is for one reader.
func (g *Group[R]) Changes() <-chan struct{} { return g.rung }

// ring never blocks: the library calls it from its main loop.
func (g *Group[R]) ring() {
	select {
	case g.rung <- struct{}{}:
	default:
	}
}

// listen rings at each change that the library tells of.
func (g *Group[R]) listen() {
	g.raft.RegisterObserver(raft.NewObserver(nil, false, func(o *raft.Observation) bool {
		switch is := o.Data.(type) {
		case raft.LeaderObservation:
			g.ring()
		case raft.RaftState:
			if is != raft.Leader {
				g.leading.Store(false)
			}
			g.ring()
		}
		return false // was taken care of
	}))
}

// drainNotify always has a hand free for the library's word on leadership. The
// library blocks its main loop on that channel, so nothing else may happen
// here.
func (g *Group[R]) drainNotify() {
	for {
		select {
		case led := <-g.changes:
			if !led {
				g.leading.Store(false)
			}
			replaceLatest(g.gained, led)
		case <-g.ctx.Done():
			return
		}
	}
}

// replaceLatest leaves v in ch, which holds one value and has one sender.
func replaceLatest(ch chan bool, v bool) {
	select {
	case <-ch:
	default:
	}
	ch <- v
}

// lead establishes each leadership before the node is called leading.
func (g *Group[R]) lead() {
	for {
		select {
		case led := <-g.gained:
			for led {
				led = g.establish()
			}
			g.leading.Store(false)
			g.metrics.leader.Set(0)
		case <-g.faulted:
			g.metrics.leader.Set(0)
			return
		case <-g.ctx.Done():
			return
		}
	}
}

// establish runs one leadership to its end and reports whether the next has
// already begun.
func (g *Group[R]) establish() (again bool) {
	ctx, cancel := context.WithCancel(g.ctx)
	defer cancel()
	term := g.raft.CurrentTerm()
	ready := make(chan struct{})
	var prepare sync.WaitGroup
	prepare.Go(func() { g.prepare(ctx, ready) })
	defer prepare.Wait()
	defer cancel()
	for {
		select {
		case <-ready:
			ready = nil
			g.leading.Store(true)
			g.ring()
			g.metrics.leader.Set(1)
			g.log.Info("leading", "term", g.raft.CurrentTerm())
		case led := <-g.gained:
			// A gain after a loss that was overwritten is a new term all the same.
			g.leading.Store(false)
			g.ring()
			g.tellLoss(term)
			return led
		case <-g.faulted:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// tellLoss logs that a leadership which began in that term is over, and why as far
// as can be told from here.
func (g *Group[R]) tellLoss(term uint64) {
	now := g.raft.CurrentTerm()
	_, leader := g.raft.LeaderWithID()
	switch {
	case g.handing.Load() >= term:
		g.log.Info("no longer leading", "term", term, "reason", "leadership was handed on")
	case now > term:
		g.log.Warn("no longer leading", "term", term, "reason", "another election has begun", "now", now, "leader", string(leader))
	default:
		g.log.Warn("no longer leading", "term", term, "reason", "no majority of the planners answered in time")
	}
}

// prepare applies what is committed and runs OnLead until it succeeds.
func (g *Group[R]) prepare(ctx context.Context, ready chan<- struct{}) {
	pause, last := 50*time.Millisecond, ""
	for {
		err := g.prepareOnce(ctx)
		if err == nil {
			close(ready)
			return
		}
		if ctx.Err() != nil {
			return
		}
		if text := err.Error(); text != last { // a full disk may be so for long
			g.log.Warn("leadership not established yet", "error", err)
			last = text
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Second)
	}
}

const prepareTimeout = 10 * time.Second

func (g *Group[R]) prepareOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	term := g.raft.CurrentTerm()
	if err := g.Barrier(ctx); err != nil {
		return err
	}
	// The barrier was committed in this term or, if we have lost it since, in a
	// later one; the earlier number is then of no use to anybody.
	g.ledTerm.Store(term)
	return g.cfg.OnLead(ctx)
}
