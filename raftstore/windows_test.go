package raftstore

import (
	"errors"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/planner"
)

// A leader proposes no grant of a window that is more than one off its clock, whoever
// asks, so that nobody is shut out of the present one.
func TestLeaderComparesWindows(t *testing.T) {
	t.Parallel()
	const present = 1000
	y := newYard(t)
	nodes := y.voters(3, func(c *Config) {
		c.Window = func() uint64 { return present }
		c.noCalls = c.NodeID == "n1" // by either way of asking
	})
	y.level(nodes...)
	ctx := within(t, 20*time.Second)
	if _, err := nodes[0].Propose(ctx, planner.SetQuota{Tenant: "t", Limit: 100}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		window uint64
		want   error
	}{{present + 60, planner.ErrClock}, {present - 2, planner.ErrClock}, {present - 1, nil}, {present, nil}, {present + 1, nil}} {
		for _, from := range nodes {
			res, err := from.Propose(ctx, planner.GrantQuota{Tenant: "t", Holder: from.cfg.NodeID, Window: tt.window, Tokens: 1})
			if err != nil || !errors.Is(res.Err(), tt.want) || tt.want == nil && res.Granted != 1 {
				t.Errorf("%s, window %d: %+v, %v; want %v", from.cfg.NodeID, tt.window, res, err, tt.want)
			}
		}
	}
}
