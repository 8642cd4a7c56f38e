package group

import (
	"time"

	"github.com/hashicorp/raft"
)

const (
	// looksPerTimeout is how often in a heartbeat timeout a member looks for a leader
	// that it could miss.
	looksPerTimeout = 4
	// turnsPerTimeout is how many voters could stand one after the other in a
	// heartbeat timeout.
	turnsPerTimeout = 20
)

// noticeSilence has this member stand for election as soon as the leader has been
// silent for its patience. Left alone the library looks one to three timeouts
// after the last word, and who has not looked yet refuses the others a pre-vote,
// so that an election waits for the last of a majority to look.
func (g *Group[R]) noticeSilence() {
	w := hearing{timeout: g.cfg.Heartbeat}
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
		_, leader := g.raft.LeaderWithID()
		if g.raft.State() != raft.Follower {
			leader = ""
		}
		bears := patience(g.raft.GetConfiguration().Configuration(), raft.ServerID(g.cfg.NodeID), leader, g.cfg.Heartbeat)
		if w.over(time.Now(), leader, g.raft.CurrentTerm(), g.raft.LastContact(), bears) {
			g.lookNow()
		}
		timer.Reset(time.Until(w.due))
	}
}

// hearing is what a member knows of how long a leader has been silent.
type hearing struct {
	timeout time.Duration
	leader  raft.ServerID
	term    uint64
	since   time.Time // when that leader was first seen
	due     time.Time // of the next look
}

// over reports whether a leader has been silent for as long as patience, which is
// 0 for a member that cannot stand, and sets when to look again. The last word may
// be another leader's: a new one is given its time from when it was first seen. A
// look that comes late says nothing, since this process was stopped and there may be
// words that it has not read.
func (w *hearing) over(now time.Time, leader raft.ServerID, term uint64, heard time.Time, patience time.Duration) bool {
	pause := w.timeout / looksPerTimeout
	late := !w.due.IsZero() && now.Sub(w.due) > pause
	w.due = now.Add(pause)
	if leader != w.leader || term != w.term {
		w.leader, w.term, w.since = leader, term, now
	}
	if leader == "" || patience == 0 || late {
		return false
	}
	if heard.Before(w.since) {
		heard = w.since
	}
	if end := heard.Add(patience); end.After(now) {
		w.due = end
		return false
	}
	return true
}

// patience is how long a member bears the silence of a leader: the heartbeat timeout,
// and a turn more for each voter that is listed before. Voters that heard the last word
// together would otherwise stand together, each with a vote for itself. It is 0 for
// a member without a vote.
func patience(c raft.Configuration, self, leader raft.ServerID, timeout time.Duration) time.Duration {
	turns := 0
	for _, s := range c.Servers {
		switch {
		case s.Suffrage != raft.Voter:
		case s.ID == self:
			return timeout + timeout/turnsPerTimeout*time.Duration(turns)
		case s.ID != leader:
			turns++
		}
	}
	return 0
}

// lookNow has the library see at once whether the leader has been heard of within
// the heartbeat timeout: it does when that timeout becomes shorter, here by a nanosecond.
func (g *Group[R]) lookNow() {
	c := g.raft.ReloadableConfig()
	for _, c.HeartbeatTimeout = range []time.Duration{g.cfg.Heartbeat + 1, g.cfg.Heartbeat} {
		if err := g.raft.ReloadConfig(c); err != nil {
			g.log.Error("a silent leader is noticed late", "error", err)
		}
	}
}
