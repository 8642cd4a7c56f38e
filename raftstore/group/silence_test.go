package group

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// Left alone the library takes up to three timeouts, and about two at the median.
func TestSilentLeaderIsReplacedWithinATimeoutAndAQuarter(t *testing.T) {
	for _, n := range []int{3, 5} {
		synctest.Test(t, func(t *testing.T) {
			members := cluster(t, n, func(_ int, c *Config) { c.Lease = defaultHeartbeat }) // the longest there may be
			defer closeAll(t, members)
			for range 20 {
				silent := leader(t, members, 10*time.Second)
				time.Sleep(defaultHeartbeat) // all have seen it
				sayLastWord(t, members, silent)
				isolate(members, slices.Index(members, silent))
				begin := time.Now()
				leader(t, without(members, silent), 10*time.Second)
				// leader looks every 10 ms.
				if took := time.Since(begin); took > defaultHeartbeat*5/4+20*time.Millisecond {
					t.Errorf("of %d members a new one led after %v", n, took)
				}
				connect(members, slices.Index(members, silent))
				time.Sleep(5 * defaultHeartbeat)
			}
		})
	}
}

// sayLastWord has all members hear an entry of the leader at about the same time.
func sayLastWord(t *testing.T, members []*node, lead *node) {
	t.Helper()
	_, err := apply(t, lead, "x", time.Second)
	must(t, err)
	last := lead.Status().Last
	eventually(t, "all have the entry", func() bool {
		return !slices.ContainsFunc(members, func(m *node) bool { return m.Status().Last != last })
	})
}

// A member that does not hear the leader must not disturb those that do.
func TestDeafMemberChangesNoLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 3, nil)
		defer closeAll(t, members)
		lead := leader(t, members, 10*time.Second)
		deaf := without(members, lead)[0]
		term := lead.Status().Term
		for _, silence := range []time.Duration{defaultHeartbeat * 5 / 4, defaultHeartbeat * 3 / 2, 10 * defaultHeartbeat} {
			lead.net.Disconnect(deaf.net.LocalAddr()) // it can still ask for votes
			time.Sleep(silence)
			if s := deaf.raft.State(); s != raft.Candidate {
				t.Errorf("after %v of silence the member is a %v", silence, s)
			}
			connect(members, slices.Index(members, deaf))
			time.Sleep(5 * defaultHeartbeat)
			if st := lead.Status(); !lead.Leading() || st.Term != term || deaf.raft.State() != raft.Follower {
				t.Fatalf("leading %v, %+v; the term was %d; the other is a %v", lead.Leading(), st, term, deaf.raft.State())
			}
		}
	})
}

func TestPatience(t *testing.T) {
	const timeout = turnsPerTimeout * time.Millisecond
	var c raft.Configuration
	for _, s := range []struct {
		id    raft.ServerID
		votes raft.ServerSuffrage
	}{{"gateway", raft.Nonvoter}, {"a", raft.Voter}, {"leader", raft.Voter}, {"b", raft.Voter}, {"joining", raft.Nonvoter}, {"c", raft.Voter}} {
		c.Servers = append(c.Servers, raft.Server{ID: s.id, Suffrage: s.votes})
	}
	for _, w := range []struct {
		self, leader raft.ServerID
		turns        int // -1 cannot stand
	}{
		{"a", "leader", 0},
		{"b", "leader", 1},
		{"c", "leader", 2},
		{"c", "", 3},
		{"c", "a", 2},
		{"leader", "leader", 1},
		{"gateway", "leader", -1},
		{"joining", "leader", -1},
		{"removed", "leader", -1},
	} {
		want := timeout + time.Duration(w.turns)*time.Millisecond
		if w.turns < 0 {
			want = 0
		}
		if got := patience(c, w.self, w.leader, timeout); got != want {
			t.Errorf("%s bears the silence of %q for %v, want %v", w.self, w.leader, got, want)
		}
	}
}

func TestSilence(t *testing.T) {
	const timeout, patience = 400 * time.Millisecond, 420 * time.Millisecond
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	type look struct {
		now    int // ms
		leader raft.ServerID
		term   uint64
		heard  int // ms
		over   bool
		next   int // ms
	}
	for name, looks := range map[string][]look{
		"heard again and again": {{0, "a", 1, -20, false, 420}, {420, "a", 1, 400, false, 820}, {820, "a", 1, 810, false, 1230}},
		"silent":                {{0, "a", 1, -20, false, 420}, {420, "a", 1, 100, false, 520}, {520, "a", 1, 100, true, 620}},
		"still silent":          {{0, "a", 1, -20, false, 420}, {420, "a", 1, 0, true, 520}, {520, "a", 1, 0, true, 620}},
		"no leader":             {{0, "", 1, -900, false, 100}, {100, "", 2, -900, false, 200}},
		// The last word was the leader's before: this one has not had its time.
		"a new leader":             {{0, "", 1, -900, false, 100}, {100, "b", 2, -900, false, 520}, {520, "b", 2, -900, true, 620}},
		"the same leader, anew":    {{0, "a", 1, -20, false, 420}, {420, "a", 3, -20, false, 840}},
		"a leader not yet heard":   {{0, "", 1, -900, false, 100}, {100, "b", 2, -900, false, 520}, {520, "b", 2, 510, false, 930}},
		"this process was stopped": {{0, "a", 1, -20, false, 420}, {900, "a", 1, 0, false, 1000}, {1000, "a", 1, 950, false, 1370}},
		"stopped, and silent":      {{0, "a", 1, -20, false, 420}, {900, "a", 1, 0, false, 1000}, {1000, "a", 1, 0, true, 1100}},
	} {
		w := hearing{timeout: timeout}
		for i, l := range looks {
			if over := w.over(at(l.now), l.leader, l.term, at(l.heard), patience); over != l.over || !w.due.Equal(at(l.next)) {
				t.Errorf("%s: look %d: over %v, next at %v; want %+v", name, i, over, w.due.Sub(start), l)
			}
		}
	}
}
