package raftstore

import (
	"errors"

	"github.com/yardmaster/yardmaster/raftstore/group"
)

// Errors of proposals, as raftstore/group defines them.
var (
	// ErrNotLeader means that the node asked does not lead; nothing was proposed.
	ErrNotLeader = group.ErrNotLeader
	// ErrAmbiguous means that the command may or may not come into force.
	// ProposeAs with the same request id may be repeated.
	ErrAmbiguous = group.ErrAmbiguous
	// ErrBusy means that too much is in flight, or that something else that is under
	// way stood against it; the text says what. Nothing was proposed.
	ErrBusy = group.ErrBusy
	// ErrHalfDone means that the first step of a change is in force and the last is
	// not. Repeating the change goes on from there.
	ErrHalfDone = errors.New("the change is only half done")
	// ErrClosed means that the store was closed or has a fault; nothing was
	// proposed.
	ErrClosed = group.ErrClosed
)

var (
	// ErrNoLeader means that no leader could be reached before the deadline;
	// nothing was proposed.
	ErrNoLeader = errors.New("the cluster has no leader that answers")
	// ErrNotReady means that the node is in no cluster yet, or has not caught up
	// with it. The text says what it waits for.
	ErrNotReady = errors.New("not ready")
	// ErrStale means that this node's state is older than the reader bears.
	ErrStale = errors.New("state is older than allowed")
	// ErrUnknownMember means that the cluster has no member of that id.
	ErrUnknownMember = errors.New("no such member")
	// ErrRefused means that a change of the cluster would do harm, or is not
	// possible now.
	ErrRefused = errors.New("refused")
	// ErrIDInUse means that another node runs under this node's id.
	ErrIDInUse = errors.New("another node runs under this id")
	// ErrRemoved means that the cluster removed this node.
	ErrRemoved = errors.New("this node was removed from its cluster; start it with an empty data directory to join again")
)

// busy is an ErrBusy in words of its own.
type busy string

func (b busy) Error() string      { return string(b) }
func (busy) Is(target error) bool { return target == ErrBusy }
