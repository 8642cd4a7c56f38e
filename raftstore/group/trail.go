package group

import (
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// mayTrail reports whether entries may be sent to the others while they are being
// written to this node's disk. The library counts them as stored here at once, so
// everything that follows from that waits for the disk elsewhere:
//
//   - A commit needs another voter's answer, and the transport holds that back
//     until the entries are on this disk too. Where this is the only voter, or may
//     become it with these entries, nothing may trail.
//   - A follower tells a leader what it has stored, and a voter by it judges a
//     candidate. A leader does neither before its term has changed, and the new
//     term, like all that goes to the disk by another way, is written after the
//     entries.
//
// It is called by the library's main loop, which alone changes what it looks at.
func (g *Group[R]) mayTrail(entries []*raft.Log) bool {
	if g.raft.State() != raft.Leader || voters(g.raft.GetConfiguration().Configuration()) < 2 {
		return false
	}
	return !slices.ContainsFunc(entries, func(l *raft.Log) bool { return l.Type == raft.LogConfiguration })
}

// pauseNonvoter is how long a member without a vote waits for further entries. No
// commit waits for it, and there may be many of them.
const pauseNonvoter = 5 * time.Millisecond

// pace is the pause between two requests with entries to a member.
func (g *Group[R]) pace(id raft.ServerID) time.Duration {
	for _, s := range g.raft.GetConfiguration().Configuration().Servers {
		if s.ID == id && s.Suffrage == raft.Voter {
			return 0
		}
	}
	return pauseNonvoter
}
