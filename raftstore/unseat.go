package raftstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// The prefix group follows the core group a little later. Who is told that a
// voter is gone shuts it down, and if the prefix group counts on it still, and on
// one or two that went before, then that group has no quorum left, and nobody who
// could change that. So a voter is gone only when neither group counts on it, and
// the next one goes only then.

// seated reports whether the prefix group, as this node knows it, counts on the
// node's vote.
func seated(g *groups, id string) bool {
	for _, m := range membersOf(g.prefix) {
		if m.ID == id {
			return m.Voter
		}
	}
	return false
}

// leftover is a voter of the prefix group which is not one of the core group any
// more, other than id; empty if there is none.
func leftover(g *groups, id string) string {
	core := membersOf(g.core)
	for _, m := range membersOf(g.prefix) {
		i := slices.IndexFunc(core, func(c Member) bool { return c.ID == m.ID })
		if m.Voter && m.ID != id && (i < 0 || !core[i].Voter) {
			return m.ID
		}
	}
	return ""
}

// awaitNoLeftover waits until the prefix group has followed what was changed
// before, if a voter is to go.
func (s *Store) awaitNoLeftover(ctx context.Context, g *groups, id string) error {
	if m, ok := memberOf(g, id); !ok || !m.Voter {
		return nil
	}
	last := ""
	done := s.poll(ctx, func() bool { last = leftover(g, id); return last == "" })
	if !done {
		return busy("the prefix group still counts on " + last + ", which went before")
	}
	return nil
}

// awaitUnseated waits until the prefix group does not count on a voter that has
// gone.
func (s *Store) awaitUnseated(ctx context.Context, g *groups, id string) error {
	if !s.poll(ctx, func() bool { return !seated(g, id) }) {
		return fmt.Errorf("%w: the prefix group still counts on %s: keep it running, and repeat this", ErrHalfDone, id)
	}
	return nil
}

// poll waits until done is true and reports whether it came to be before ctx
// ended, or the node.
func (s *Store) poll(ctx context.Context, done func() bool) bool {
	for !done() {
		if !s.sleep(ctx, retryPause) {
			return false
		}
	}
	return true
}

// halfDone is the error of a change whose first step is in force.
func halfDone(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrHalfDone, err)
}

// retire makes a change by which a node gives up its vote, if it has one, so that
// it may be shut down afterwards. It may be repeated.
func (s *Store) retire(ctx context.Context, g *groups, id string, change func() error) error {
	if err := s.awaitNoLeftover(ctx, g, id); err != nil {
		return err
	}
	gone := seated(g, id) && !isMember(g, id) // an earlier call did the first half
	if err := change(); err != nil && (!gone || !errors.Is(err, ErrUnknownMember)) {
		return err
	}
	return s.awaitUnseated(ctx, g, id)
}
