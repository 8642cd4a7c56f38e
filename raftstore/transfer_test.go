package raftstore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/raftstore/transport/faultnet"
)

// A transfer to a planner that hangs, or is gone, is refused at once, and costs the
// leader nothing.
func TestTransferToAPlannerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.net = faultnet.New(1)
	nodes := y.voters(3, nil)
	leads, others := y.leader(nodes)
	y.until("one leads both", func() bool { return leads.LeadingPrefix() || leads.Transfer(t.Context(), leads.cfg.NodeID) == nil })
	hung, fine := others[0], others[1]
	refused := func(what string) {
		t.Helper()
		for range 3 {
			start := time.Now()
			err := leads.Transfer(within(t, 30*time.Second), hung.cfg.NodeID)
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "healthy: "+fine.cfg.NodeID) {
				t.Errorf("%s: %v", what, err)
			}
			if d := time.Since(start); d > longestCall/2 {
				t.Errorf("%s: refused after %v", what, d)
			}
		}
		propose(t, leads, what)
		if leads.Fault() != nil || !leads.Leading() {
			t.Errorf("%s: leading %v, fault %v", what, leads.Leading(), leads.Fault())
		}
	}
	y.net.Isolate(hung.cfg.NodeID)
	refused("hung")
	y.net.Heal()
	y.sees(hung, "hung")
	hung.stop()
	refused("gone")
	if err := leads.Transfer(within(t, 30*time.Second), "nobody"); !errors.Is(err, ErrUnknownMember) {
		t.Errorf("to nobody: %v", err)
	}
	if err := leads.Transfer(within(t, 30*time.Second), ""); err != nil {
		t.Errorf("to the fittest: %v", err)
	}
	y.until("the fittest leads", func() bool { return fine.Leading() })
}
