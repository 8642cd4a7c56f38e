package member

import (
	"slices"
	"strings"
)

// Member is a node in the configuration of a group, by its stable name.
type Member struct {
	ID    string `json:"id"`
	Addr  string `json:"addr"` // of its peer port
	Voter bool   `json:"voter"`
}

// Action is what a [Step] does.
type Action uint8

// The actions.
const (
	// Put adds the member, gives it its vote, or gives it another address.
	Put Action = iota + 1
	// Demote takes the member's vote.
	Demote
	// Remove takes the member out.
	Remove
	// HandOver gives up leadership: the leader itself has to go.
	HandOver
)

// Step is one change of a configuration.
type Step struct {
	Do     Action
	Member Member
}

// Next is the change that brings the configuration have closer to want; ok is
// false when there is none. self is the leader that would make it. Making
// change after change reaches want, whoever leads in between.
//
// Who is not wanted goes before others come, because it may be dead and count
// against the quorum; but at least one voter that is wanted stays, and the
// leader goes last, after handing over. An empty want is not believed.
func Next(want, have []Member, self string) (step Step, ok bool) {
	if voters(want) == 0 {
		return Step{}, false
	}
	kept := 0 // voters that are wanted as such
	for _, s := range have {
		if w, ok := find(want, s.ID); ok && w.Voter && s.Voter {
			kept++
		}
	}
	if kept > 0 {
		if s, ok := surplus(want, have, self); ok {
			return s, true
		}
	}
	if s, ok := missing(want, have); ok {
		return s, true
	}
	if _, member := find(have, self); member && kept > 0 {
		if w, ok := find(want, self); !ok || !w.Voter {
			return Step{HandOver, Member{ID: self}}, true
		}
	}
	return Step{}, false
}

// surplus is a member, not the leader, that is to go or to lose its vote.
func surplus(want, have []Member, self string) (Step, bool) {
	for _, s := range sorted(have) {
		if s.ID == self {
			continue
		}
		w, wanted := find(want, s.ID)
		switch {
		case !wanted:
			return Step{Remove, s}, true
		case s.Voter && !w.Voter:
			return Step{Demote, s}, true
		}
	}
	return Step{}, false
}

// missing is a member that is to come, to vote or to move; voters first.
func missing(want, have []Member) (Step, bool) {
	for _, voter := range []bool{true, false} {
		for _, w := range sorted(want) {
			h, member := find(have, w.ID)
			// An address that is not known yet is no reason to forget the old one.
			moved := w.Addr != h.Addr && w.Addr != ""
			if w.Voter == voter && w.Addr != "" && (!member || (w.Voter && !h.Voter) || (w.Voter == h.Voter && moved)) {
				return Step{Put, w}, true
			}
		}
	}
	return Step{}, false
}

func find(members []Member, id string) (Member, bool) {
	i := slices.IndexFunc(members, func(s Member) bool { return s.ID == id })
	if i < 0 {
		return Member{}, false
	}
	return members[i], true
}

func voters(members []Member) (n int) {
	for _, s := range members {
		if s.Voter {
			n++
		}
	}
	return n
}

func sorted(members []Member) []Member {
	return slices.SortedFunc(slices.Values(members), func(a, b Member) int { return strings.Compare(a.ID, b.ID) })
}

// String is the action's name in logs.
func (a Action) String() string {
	names := [...]string{Put: "put", Demote: "demote", Remove: "remove", HandOver: "hand over"}
	if a == 0 || int(a) >= len(names) {
		return "nothing"
	}
	return names[a]
}
