package transport

import (
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// acks remembers, for each peer, the newest call of this node as a leader that
// the peer has answered. The library counts answers when they come; one that was
// long on its way, or lay in a socket while this process was stopped, tells that
// we led once, not that we do.
type acks struct {
	calls atomic.Uint64 // numbers calls and marks in their order

	mu       sync.Mutex
	term     uint64
	answered map[raft.ServerID]uint64
}

// maxAnswered bounds the peers that are remembered: gateways come and go, each
// time under another name.
const maxAnswered = 4096

func (a *acks) note(id raft.ServerID, term, call uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if term < a.term {
		return
	}
	if term > a.term || len(a.answered) >= maxAnswered {
		a.term, a.answered = term, map[raft.ServerID]uint64{}
	}
	a.answered[id] = max(a.answered[id], call)
}

// Mark is a moment to compare with [Guarded.AnsweredSince].
func (g *Guarded) Mark() uint64 { return g.acks.calls.Add(1) }

// AnsweredSince reports whether the peer has taken this node for the leader of
// the term in answer to a call that began after the mark.
func (g *Guarded) AnsweredSince(mark uint64, id raft.ServerID, term uint64) bool {
	g.acks.mu.Lock()
	defer g.acks.mu.Unlock()
	return g.acks.term == term && g.acks.answered[id] > mark
}
