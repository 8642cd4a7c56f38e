package raftstore

import (
	"context"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
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
// returns the view. What View, State and the like show afterwards is as fresh.
// Errors wrap ErrNoLeader, ErrStale, ErrNotReady or ErrClosed, or are ctx's.
func (s *Store) Read(ctx context.Context, c Consistency) (*fleet.View, error) {
	if c.kind == readStale && c.maxAge == 0 && c.minIndex <= s.core.Status().Applied {
		return s.View(), nil
	}
	if err := s.core.Barrier(ctx); err != nil {
		return nil, err
	}
	return s.View(), nil
}
