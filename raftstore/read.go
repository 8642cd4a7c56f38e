package raftstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/raftstore/call"
	"github.com/yardmaster/yardmaster/raftstore/group"
	"github.com/yardmaster/yardmaster/raftstore/peer"
)

// Consistency says how fresh a read must be. The zero value is Linearizable.
type Consistency struct {
	kind     readKind
	maxAge   time.Duration
	minIndex uint64
}

type readKind uint8

const (
	readLinearizable readKind = iota
	readLeader
	readStale
)

// Linearizable reads show every change that was acknowledged, to anybody, before
// the read began. They need a leader and its quorum.
func Linearizable() Consistency { return Consistency{} }

// FromLeader reads show what the leader has applied, without asking its quorum
// whether it still leads: for the length of its lease another may.
func FromLeader() Consistency { return Consistency{kind: readLeader} }

// Stale reads show what this node has applied: the entry at minIndex at least,
// on a node that heard from the leader within maxAge. Zero values do not ask.
func Stale(maxAge time.Duration, minIndex uint64) Consistency {
	return Consistency{kind: readStale, maxAge: maxAge, minIndex: minIndex}
}

// Read waits until this node's memory is as fresh as c asks, on any node, and
// returns the view. What View and State show afterwards is as fresh. It waits
// until ctx ends, or 10 s. Errors wrap ErrNoLeader, ErrStale, ErrNotReady or
// ErrClosed, or are ctx's.
func (s *Store) Read(ctx context.Context, c Consistency) (*fleet.View, error) {
	g := s.groups.Load()
	if g == nil {
		return nil, s.notInCluster()
	}
	if s.ctx.Err() != nil {
		return nil, ErrClosed
	}
	var err error
	switch c.kind {
	case readStale:
		err = s.readStale(ctx, g, c)
	case readLinearizable, readLeader:
		err = s.catchUpOnce(ctx, g, peer.Group_GROUP_CORE, c.kind == readLeader)
	}
	if err != nil {
		return nil, err
	}
	return s.View(), nil
}

// waiter is the part of a group that readers wait with.
type waiter interface {
	leader
	WaitApplied(ctx context.Context, index uint64) error
}

func (g *groups) of(which peer.Group) waiter {
	if which == peer.Group_GROUP_PREFIX {
		return g.prefix
	}
	return g.core
}

// catchUpOnce asks the leader how far a reader has to wait, and waits.
func (s *Store) catchUpOnce(ctx context.Context, g *groups, which peer.Group, unverified bool) error {
	l, index := g.of(which), uint64(0)
	err := s.persist(ctx, l, s.bell(which), func(ctx context.Context) (err error) {
		index, err = s.readIndexOnce(ctx, l, which, unverified)
		return err
	})
	if err == nil {
		err = l.WaitApplied(ctx, index)
	}
	if errors.Is(err, group.ErrClosed) && s.Fault() != nil {
		err = fmt.Errorf("%w: %w", ErrClosed, s.Fault())
	}
	return err
}

func (s *Store) readIndexOnce(ctx context.Context, l leader, which peer.Group, unverified bool) (uint64, error) {
	id, addr, term := l.Leader()
	req := &peer.ReadIndexRequest{Group: which, Term: term, Unverified: unverified}
	if l.Leading() {
		return readIndexOf(ctx, l, req)
	}
	resp := new(peer.ReadIndexResponse)
	err := s.ask(ctx, id, addr, callReadIndex, req, resp)
	if errors.Is(err, call.ErrNotServed) {
		client, why := s.leaderClient(ctx, id, addr)
		if why != nil {
			return 0, why
		}
		resp, err = client.ReadIndex(ctx, req)
	}
	if err != nil { // a question has no effect to be in doubt of
		return 0, fmt.Errorf("%w: %s: %w", ErrNoLeader, id, err)
	}
	err = errorOf(resp.GetVerdict(), resp.GetDetail())
	if errors.Is(err, ErrAmbiguous) || errors.Is(err, ErrBusy) {
		err = fmt.Errorf("%w: %s", ErrNoLeader, resp.GetDetail())
	}
	return resp.GetIndex(), err
}

// readIndexOf is the entry that a reader has to wait for, at the leader.
func readIndexOf(ctx context.Context, l leader, req *peer.ReadIndexRequest) (uint64, error) {
	if _, _, term := l.Leader(); term < req.GetTerm() {
		return 0, ErrNotLeader
	}
	if !req.GetUnverified() {
		return l.ReadIndex(ctx)
	}
	if !l.Leading() {
		return 0, ErrNotLeader
	}
	return l.Applied(), nil
}

// stateLeader is the library's word in a group's status.
const stateLeader = "Leader"

// readStale waits for the index, and looks at the age last. A leader that was
// paused believes to have heard from itself just now, so it asks its quorum.
func (s *Store) readStale(ctx context.Context, g *groups, c Consistency) error {
	if c.minIndex > 0 {
		if err := g.core.WaitApplied(ctx, c.minIndex); err != nil {
			return fmt.Errorf("%w: %w", ErrStale, err)
		}
	}
	if c.maxAge <= 0 {
		return nil
	}
	if g.core.Status().State == stateLeader {
		if _, err := g.core.ReadIndex(ctx); err != nil {
			return fmt.Errorf("%w: %w", ErrStale, err)
		}
		return nil
	}
	heard := g.core.LastContact()
	if age := time.Since(heard); heard.IsZero() || age > c.maxAge || s.Fault() != nil {
		return fmt.Errorf("%w: the leader was heard %v ago", ErrStale, age.Round(time.Millisecond))
	}
	return nil
}

// Ready is nil once this node has caught up: it has applied, in both groups,
// what was committed when it came in. It stays ready when leaders vanish. Errors
// wrap ErrNotReady.
func (s *Store) Ready() error {
	switch {
	case s.ready.Load():
		return nil
	case s.Fault() != nil:
		return fmt.Errorf("%w: %w", ErrNotReady, s.Fault())
	case s.groups.Load() == nil:
		return s.notInCluster()
	}
	return fmt.Errorf("%w: catching up with the cluster", ErrNotReady)
}

// catchUp makes the node ready.
func (s *Store) catchUp(g *groups) {
	for _, which := range []peer.Group{peer.Group_GROUP_CORE, peer.Group_GROUP_PREFIX} {
		for {
			// A large snapshot may take minutes to come. The time only bounds a try.
			ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
			err := s.catchUpOnce(ctx, g, which, false)
			cancel()
			if err == nil {
				break
			}
			if !s.sleep(s.ctx, tendEvery) {
				return
			}
		}
	}
	s.ready.Store(true)
	s.log.Info("caught up with the cluster", "core", g.core.Applied(), "prefix", g.prefix.Applied())
}
