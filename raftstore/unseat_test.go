package raftstore

import (
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/prefix"
)

// Voters leave one at once after the other, and each is gone the moment that it
// may be: neither group may lose its quorum by that.
func TestShrinkAtOnce(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	nodes := y.voters(5, nil)
	stays := nodes[4]
	for _, leaves := range nodes[:4] {
		if err := stays.RemoveMember(within(t, 30*time.Second), leaves.cfg.NodeID); err != nil {
			t.Fatal(err)
		}
		leaves.kill()
		for _, n := range y.nodes {
			if n.Store != nil && n.Leading() && seated(n.groups.Load(), leaves.cfg.NodeID) {
				t.Errorf("%s counts on %s still, which is gone", n.cfg.NodeID, leaves.cfg.NodeID)
			}
		}
		f := prefix.Frame{Kind: prefix.FrameAttach, Worker: "w", Epoch: 1}
		if _, err := stays.ProposeFrame(within(t, 30*time.Second), &f); err != nil {
			t.Fatalf("without %s: %v", leaves.cfg.NodeID, err)
		}
		propose(t, stays, "w-"+leaves.cfg.NodeID)
	}
	y.members(stays, "n5+")
}
