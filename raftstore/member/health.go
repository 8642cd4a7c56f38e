package member

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Seen is what the leader knows of a member at one moment.
type Seen struct {
	ID    string
	Voter bool
	// Silent is how long it has not answered the leader; 0 means that it just did,
	// and then the rest is known.
	Silent  time.Duration
	Term    uint64        // of the group core
	Contact time.Duration // since it heard of the leader; negative is never
	Applied uint64        // of the group core
	Fault   string
}

// Leader is the leader's own position.
type Leader struct {
	ID     string
	Term   uint64
	Commit uint64
	// Heartbeat is the heartbeat timeout in force.
	Heartbeat time.Duration
	// Grace is how long a member may be silent without being unwell: it is asked
	// every now and then, and may be slow once.
	Grace time.Duration
}

// Health is the leader's judgement of one member.
type Health struct {
	ID      string
	Voter   bool
	Healthy bool
	Reason  string // why not
	// Well is whether it is well just now; Since is from when on it has been as
	// well, or as unwell, as now.
	Well   bool
	Since  time.Time
	Silent time.Duration
}

// Verdict is the leader's judgement of the cluster.
type Verdict struct {
	Members []Health // by id
	Healthy bool     // every voter is
	Voters  int
	// CanLose is how many of the healthy voters may fail before there is no
	// quorum.
	CanLose int
}

// Judge is the verdict at now, after the one before, which is zero at first: a
// member is taken to have been always what it is when first seen. A healthy
// member answers, follows the leader in its term, heard of it within two
// heartbeat timeouts, is not behind by more than the settings allow, and has
// been so for as long as they ask.
func Judge(now time.Time, before Verdict, l Leader, seen []Seen, set Settings) Verdict {
	var v Verdict
	for _, s := range slices.SortedFunc(slices.Values(seen), func(a, b Seen) int { return strings.Compare(a.ID, b.ID) }) {
		h := Health{ID: s.ID, Voter: s.Voter, Since: now, Silent: s.Silent, Reason: trouble(l, s, set)}
		h.Well = h.Reason == ""
		old, known := remembered(before, s.ID)
		switch {
		case !known:
			h.Since, h.Healthy = now.Add(-set.StableAfter), h.Well
		case old.Well == h.Well:
			h.Since = old.Since
		}
		if h.Well && !h.Healthy {
			h.Healthy = now.Sub(h.Since) >= set.StableAfter
			if !h.Healthy {
				h.Reason = fmt.Sprintf("well again for %v only", now.Sub(h.Since).Round(time.Second))
			}
		}
		v.Members = append(v.Members, h)
	}
	v.count()
	return v
}

func remembered(v Verdict, id string) (Health, bool) {
	i := slices.IndexFunc(v.Members, func(h Health) bool { return h.ID == id })
	if i < 0 {
		return Health{}, false
	}
	return v.Members[i], true
}

func (v *Verdict) count() {
	healthy := 0
	for _, h := range v.Members {
		if !h.Voter {
			continue
		}
		v.Voters++
		if h.Healthy {
			healthy++
		}
	}
	v.Healthy = v.Voters > 0 && healthy == v.Voters
	v.CanLose = max(healthy-(v.Voters/2+1), 0)
}

// trouble is what is wrong with a member now, empty when nothing is.
func trouble(l Leader, s Seen, set Settings) string {
	switch {
	case s.Silent > l.Grace:
		return fmt.Sprintf("silent for %v", s.Silent.Round(time.Second))
	case s.Fault != "":
		return "stopped: " + s.Fault
	case s.ID == l.ID:
		return ""
	case s.Contact < 0:
		return "has not heard of a leader yet"
	case s.Contact > 2*l.Heartbeat:
		return fmt.Sprintf("heard of the leader %v ago", s.Contact.Round(10*time.Millisecond))
	case s.Term != l.Term:
		return fmt.Sprintf("is in term %d, the leader in %d", s.Term, l.Term)
	case l.Commit > s.Applied && l.Commit-s.Applied > set.MaxLag:
		return fmt.Sprintf("is %d entries behind", l.Commit-s.Applied)
	}
	return ""
}

// Reap lists the non-voters that have been silent for longer than after: they
// are gone, and are to be removed.
func Reap(v Verdict, after time.Duration) (ids []string) {
	for _, h := range v.Members {
		if !h.Voter && h.Silent > after {
			ids = append(ids, h.ID)
		}
	}
	return ids
}

// Cleanup is a voter to be removed because it is long dead, if the settings
// allow it and enough healthy ones stay: one at a time, the longest silent
// first.
func Cleanup(v Verdict, set Settings) (id string, ok bool) {
	if !set.CleanupDeadVoters || v.Voters-1 < set.MinVoters {
		return "", false
	}
	healthy, worst := 0, time.Duration(0)
	for _, h := range v.Members {
		switch {
		case !h.Voter:
		case h.Healthy:
			healthy++
		case h.Silent > set.DeadAfter && h.Silent > worst:
			id, worst = h.ID, h.Silent
		}
	}
	return id, id != "" && healthy > (v.Voters-1)/2
}

// Level is the feature level that all of them understand; ok is false while one
// has not told, which is 0.
func Level(levels []uint32) (level uint32, ok bool) {
	if len(levels) == 0 {
		return 0, false
	}
	level = slices.Min(levels)
	return level, level > 0
}
