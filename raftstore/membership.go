package raftstore

import (
	"context"
	"fmt"
)

// AddMember puts a node into the cluster's configuration, or gives a member of
// that id another address or role. The node itself comes in when it is started
// with Join; until then it counts as dead. Errors wrap ErrRefused, ErrNoLeader
// or ErrAmbiguous.
func (s *Store) AddMember(context.Context, Member) error {
	return s.alone("add a member")
}

// RemoveMember takes a node out of the cluster, dead or alive. Errors wrap
// ErrUnknownMember, ErrRefused, ErrNoLeader or ErrAmbiguous.
func (s *Store) RemoveMember(_ context.Context, id string) error {
	if id != s.cfg.NodeID {
		return fmt.Errorf("%w: %q", ErrUnknownMember, id)
	}
	return s.alone("remove the only voter")
}

// Transfer hands the leadership of both groups to a voter, or to the fittest
// when id is empty, and returns when it leads. Errors wrap ErrUnknownMember,
// ErrRefused, ErrNoLeader or ErrAmbiguous.
func (s *Store) Transfer(_ context.Context, id string) error {
	if id != "" && id != s.cfg.NodeID {
		return fmt.Errorf("%w: %q", ErrUnknownMember, id)
	}
	return s.alone("transfer leadership")
}

// StepDown hands on whatever leadership this node has. It is nil when it has
// none.
func (s *Store) StepDown(context.Context) error { return s.alone("step down") }

// Leave takes this node out of the cluster, for ever: a gateway that ends, a
// planner that is not coming back. Close follows.
func (s *Store) Leave(context.Context) error { return s.alone("leave") }

func (s *Store) alone(what string) error {
	return fmt.Errorf("%w: cannot %s: this planner has no peer port", ErrRefused, what)
}
