package group

import (
	"time"

	"github.com/hashicorp/raft"
)

// looksPerTimeout is how often in a heartbeat timeout a member looks for a leader
// that it could miss.
const looksPerTimeout = 4

// noticeSilence has this member stand for election as soon as the leader has been
// silent for its patience. Left alone the library looks one to three timeouts
// after the last word, and who has not looked yet refuses the others a pre-vote,
// so that an election waits for the last of a majority to look.
func (g *Group[R]) noticeSilence() {
	timer := time.NewTimer(g.cfg.Heartbeat)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-g.faulted:
			return
		case <-g.ctx.Done():
			return
		}
		rest := g.cfg.Heartbeat / looksPerTimeout
		if _, leader := g.raft.LeaderWithID(); leader != "" && g.raft.State() == raft.Follower {
			left := g.patience(leader) - time.Since(g.raft.LastContact())
			if left <= 0 {
				g.lookNow()
			} else {
				rest = left
			}
		}
		timer.Reset(rest)
	}
}

// patience is how long this member bears the silence of a leader: the heartbeat
// timeout, and a twentieth of it more for each voter that is listed before, since
// two that stand at once both have a vote already. One without a vote leaves it to the
// library.
func (g *Group[R]) patience(leader raft.ServerID) time.Duration {
	d := g.cfg.Heartbeat
	for _, s := range g.raft.GetConfiguration().Configuration().Servers {
		if s.ID == raft.ServerID(g.cfg.NodeID) {
			break
		}
		if s.Suffrage == raft.Voter && s.ID != leader {
			d += g.cfg.Heartbeat / 20
		}
	}
	return d
}

// lookNow has the library see at once whether the leader has been heard of within
// the heartbeat timeout: it does when that timeout becomes shorter, here by a nanosecond.
func (g *Group[R]) lookNow() {
	c := g.raft.ReloadableConfig()
	for _, c.HeartbeatTimeout = range []time.Duration{g.cfg.Heartbeat, g.cfg.Heartbeat - 1} {
		if err := g.raft.ReloadConfig(c); err != nil {
			g.log.Debug("the library's timer was not cut short", "error", err)
		}
	}
}
