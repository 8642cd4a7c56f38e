package raftstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/raftstore/call"
	"github.com/yardmaster/yardmaster/raftstore/group"
	"github.com/yardmaster/yardmaster/raftstore/peer"
	"github.com/yardmaster/yardmaster/raftstore/prefixlog"
)

const (
	// longestCall bounds calls whose context has no deadline.
	longestCall = 10 * time.Second
	// firstRetry, doubled each time up to retryPause, is the wait before a proposal
	// is tried again when no change of leadership is noticed.
	firstRetry = 5 * time.Millisecond
	retryPause = 50 * time.Millisecond
	// frameTry bounds one try of an entry of frames.
	frameTry = 2 * time.Second
)

// Propose brings cmd into force, from any node, and returns what it got; it is
// then applied at the leader, and here soon. A refusal by the state machine is in
// the result, see planner.Result.Err.
//
// It waits for a leader, and outlives the death of one, until ctx ends or 10 s
// have passed. Errors wrap planner.ErrInvalid, planner.ErrLevel, ErrNoLeader,
// ErrBusy, ErrRefused, ErrNotReady or ErrClosed when nothing was proposed, and
// ErrAmbiguous when that is not known.
func (s *Store) Propose(ctx context.Context, cmd planner.Command) (planner.Result, error) {
	return s.ProposeAs(ctx, NewRequestID(), cmd)
}

// ProposeAs is Propose under a request id of the caller's: repeating it soon
// after ErrAmbiguous, with the same command, has the effect of proposing once.
func (s *Store) ProposeAs(ctx context.Context, id planner.RequestID, cmd planner.Command) (planner.Result, error) {
	entry, err := s.machine.Encode(id, cmd)
	if err != nil {
		return planner.Result{}, err
	}
	g := s.groups.Load()
	if g == nil {
		return planner.Result{}, s.notInCluster()
	}
	// Whatever was applied here was applied before the first attempt.
	since, tried := g.core.Applied(), false
	var res planner.Result
	err = s.persist(ctx, g.core, &s.bells.core, func(ctx context.Context) error {
		var err error
		first := uint64(0)
		if tried {
			first = max(since, 1)
		}
		res, err = s.proposeOnce(ctx, g, entry, first)
		tried = tried || errors.Is(err, ErrAmbiguous)
		return err
	})
	return res, err
}

// proposeOnce proposes here or at the leader.
func (s *Store) proposeOnce(ctx context.Context, g *groups, entry []byte, since uint64) (planner.Result, error) {
	id, addr, term := g.core.Leader()
	req := &peer.ProposeRequest{Group: peer.Group_GROUP_CORE, Entry: entry, Term: term, Since: since}
	if g.core.Leading() {
		if err := remembered(g.core.Status().Last, since); err != nil {
			return planner.Result{}, err
		}
		if errors.Is(s.machine.Check(entry), planner.ErrClock) {
			return planner.Result{Code: planner.ClockOff}, nil
		}
		return g.core.Apply(ctx, entry)
	}
	result, err := s.forward(ctx, id, addr, req)
	if err != nil {
		return planner.Result{}, err
	}
	return planner.ParseResult(result)
}

// forward has the leader propose an entry.
func (s *Store) forward(ctx context.Context, id, addr string, req *peer.ProposeRequest) ([]byte, error) {
	resp := new(peer.ProposeResponse)
	err := s.ask(ctx, id, addr, callPropose, req, resp)
	if errors.Is(err, call.ErrNotServed) {
		client, why := s.leaderClient(ctx, id, addr)
		if why != nil {
			return nil, why
		}
		resp, err = client.Propose(ctx, req)
	}
	switch {
	case err == nil:
		return resp.GetResult(), errorOf(resp.GetVerdict(), resp.GetDetail())
	case errors.Is(err, ErrNoLeader), errors.Is(err, ErrBusy):
		return nil, err
	}
	return nil, fmt.Errorf("%w: forwarded to %s: %w", ErrAmbiguous, id, err)
}

// leaderClient connects to the leader, as far as one is known. Errors wrap
// ErrNoLeader: nothing was asked.
func (s *Store) leaderClient(ctx context.Context, id, addr string) (peer.PeerClient, error) {
	if id == "" || id == s.cfg.NodeID || s.net == nil {
		return nil, ErrNoLeader
	}
	client, err := s.net.pool.Client(ctx, id, s.whereIs(id, addr))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoLeader, err)
	}
	return client, nil
}

// persist tries again while a leader of the group may yet come, or the outcome is
// not known, until ctx ends. An attempt is given up when somebody else leads: a
// leader that is gone may keep it waiting for long. Repeating must be harmless.
func (s *Store) persist(ctx context.Context, l leader, bell *bell, attempt func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, longestCall)
	defer cancel()
	pause := firstRetry
	for doubt := error(nil); ; {
		changed := bell.next()
		if s.ended() {
			return errors.Join(doubt, ErrClosed, s.Fault())
		}
		err := s.attempt(ctx, l, bell, attempt)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrAmbiguous), errors.Is(err, ErrHalfDone):
			doubt = err
		case !passes(err):
			return errors.Join(doubt, err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-changed:
			pause = firstRetry
		case <-timer.C:
			pause = min(2*pause, retryPause)
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return givenUp(ctx, doubt, err)
		}
	}
}

// passes reports whether an error that is known to have had no effect may be
// gone at the next attempt.
func passes(err error) bool {
	for _, e := range []error{
		ErrNoLeader, ErrNotLeader, group.ErrTransferring, group.ErrLowDisk, context.DeadlineExceeded, context.Canceled,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// ended reports that this node proposes nothing any more.
func (s *Store) ended() bool { return s.ctx.Err() != nil || s.Fault() != nil }

// givenUp is the error when the time is over: what is in doubt stays so.
func givenUp(ctx context.Context, doubt, last error) error {
	if doubt != nil {
		return fmt.Errorf("%w: %w", doubt, ctx.Err())
	}
	if errors.Is(last, ErrNoLeader) {
		return fmt.Errorf("%w: %w", last, ctx.Err())
	}
	return fmt.Errorf("%w: %w: %w", ErrNoLeader, last, ctx.Err())
}

// attempt runs one attempt. It ends when another leads than did when it began, or,
// a little later, when the same one leads anew.
func (s *Store) attempt(ctx context.Context, l leader, bell *bell, attempt func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	asked, _, term := l.Leader()
	var late *time.Timer
	look := func() {
		switch now, _, since := l.Leader(); {
		case now == "", now == asked && since == term: // there is nobody else to be asked
		case now != asked:
			cancel()
		case late == nil:
			late = time.AfterFunc(retryPause, cancel)
		}
	}
	leave := bell.watch(look)
	defer func() {
		leave()
		if late != nil {
			late.Stop()
		}
	}()
	return attempt(ctx)
}

// leadTime is how long a caller is kept until this node leads.
const leadTime = time.Second

// awaitLead waits, for leadTime at most, while this node is the leader by Raft and has not applied yet
// what was committed before its term: whoever asks it then has come a moment too
// early, and would come back late. It reports whether this node leads.
func (s *Store) awaitLead(ctx context.Context, l changer, bell *bell) bool {
	if l.Leading() {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, leadTime)
	defer cancel()
	for {
		changed := bell.next()
		if l.Leading() {
			return true
		}
		if l.Status().State != stateLeader {
			return false
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		case <-s.faulted:
			return false
		case <-s.ctx.Done():
			return false
		}
	}
}

// ProposeFrame brings a frame into force, from any node, and says what became of
// it. Frames of many callers go together. A frame may be proposed again: its
// numbers make that harmless. Errors wrap prefix.ErrMalformed, ErrNotReady,
// ErrNoLeader, ErrAmbiguous or ErrClosed, or are ctx's.
func (s *Store) ProposeFrame(ctx context.Context, f *prefix.Frame) (prefix.Outcome, error) {
	g := s.groups.Load()
	if g == nil {
		return 0, s.notInCluster()
	}
	out, err := g.frames.Do(ctx, f)
	if errors.Is(err, prefixlog.ErrClosed) {
		err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return out, err
}

// submitFrames is how entries of frames get to the leader. Where this node leads
// it keeps their order; over the network they may overtake one another, which
// the frames of one worker do not, because each is waited for.
func (s *Store) submitFrames(g *groups) prefixlog.Submit {
	here := prefixlog.To(g.prefix)
	return func(ctx context.Context, entry []byte) (prefixlog.Wait, error) {
		var wait prefixlog.Wait
		if g.prefix.Leading() {
			wait, _ = here(ctx, entry) // what is refused here is tried again below
		}
		return func(ctx context.Context) (outcomes []prefix.Outcome, err error) {
			err = s.persist(ctx, g.prefix, &s.bells.prefix, func(ctx context.Context) error {
				if wait != nil {
					outcomes, err = wait(ctx)
					wait = nil
					return err
				}
				outcomes, err = s.framesOnce(ctx, g, entry)
				return err
			})
			return outcomes, err
		}, nil
	}
}

func (s *Store) framesOnce(ctx context.Context, g *groups, entry []byte) ([]prefix.Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, frameTry)
	defer cancel()
	id, addr, term := g.prefix.Leader()
	if g.prefix.Leading() {
		return g.prefix.Apply(ctx, entry)
	}
	result, err := s.forward(ctx, id, addr, &peer.ProposeRequest{Group: peer.Group_GROUP_PREFIX, Entry: entry, Term: term})
	if err != nil {
		return nil, err
	}
	outcomes := make([]prefix.Outcome, len(result))
	for i, b := range result {
		outcomes[i] = prefix.Outcome(b)
	}
	return outcomes, nil
}
