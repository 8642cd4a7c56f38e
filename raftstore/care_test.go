package raftstore

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Only who is no member, or has answered in this round as another run, loses its
// grants.
func TestHoldersThatAreGone(t *testing.T) {
	t.Parallel()
	round := time.Unix(100, 0)
	before := round.Add(-time.Second)
	c := care{
		round: round,
		heard: map[string]time.Time{"same": round, "anew": round, "silent": before, "mute": round},
		nodes: map[string]NodeStatus{
			"same": {Incarnation: "1"}, "anew": {Incarnation: "2"}, "silent": {Incarnation: "1"}, "mute": {},
		},
		holders: []string{"anew/1", "anew/2", "gone/1", "mute/1", "odd", "same/1", "silent/1", "silent/2", "unheard/1"},
	}
	current := map[string]bool{"same": true, "anew": true, "silent": true, "mute": true, "unheard": true}
	if diff := cmp.Diff([]string{"anew/1", "gone/1"}, c.ended(current)); diff != "" {
		t.Error(diff)
	}
}
