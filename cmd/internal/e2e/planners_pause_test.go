package e2e

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/raftstore/peer"
)

// TestLeaderStopped stops the leader for longer than its lease and lets it go
// on. Until then it takes itself for the leader, and questions wait at its
// sockets: none may get an answer that is older than what was acknowledged by
// others before it was asked.
func TestLeaderStopped(t *testing.T) {
	c := startCluster(t, nil)
	stop := c.use(t)
	c.works(t)
	rounds := 1
	if simulated() {
		rounds = 10
	}
	for range rounds {
		c.stopLeader(t)
	}
	c.stopAll(t)
	stop()
	c.verdict(t)
}

// stopAll stops all planners at once, as a machine does that sleeps or moves.
// None may take that for a fault of its own.
func (c *cluster) stopAll(t *testing.T) {
	t.Helper()
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		for _, n := range c.Nodes {
			n.Signal(sig)
		}
		if sig == syscall.SIGSTOP {
			time.Sleep(2 * time.Second)
		}
	}
	c.works(t)
	for _, n := range c.Nodes {
		if !n.Running() {
			t.Errorf("%s ended because it was stopped: %s", n.ID, n.LastWords())
		}
	}
}

func (c *cluster) stopLeader(t *testing.T) {
	t.Helper()
	old := c.leader(t)
	m := c.members[1]
	pool := peer.NewPool(m.Port)
	defer pool.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	named := metadata.AppendToOutgoingContext(ctx, "ym-cluster", m.ClusterID())
	asked, err := pool.Client(ctx, old.ID, old.Peer)
	if err != nil {
		t.Fatal(err)
	}
	var floor atomic.Uint64 // acknowledged so far
	var answers, refusals, failures atomic.Int64
	ask := func() {
		least := floor.Load()
		resp, err := asked.ReadIndex(named, &peer.ReadIndexRequest{Group: peer.Group_GROUP_CORE})
		switch {
		case err != nil:
			failures.Add(1)
			return
		case resp.GetVerdict() != peer.Verdict_VERDICT_DONE:
			refusals.Add(1)
			return
		}
		answers.Add(1)
		if resp.GetIndex() < least {
			t.Errorf("%s answers a linearizable read with entry %d, and %d was acknowledged before", old.ID, resp.GetIndex(), least)
		}
	}
	ask()
	if answers.Load() != 1 {
		t.Fatal("the leader does not answer reads")
	}
	term := c.coreTerm(t, old.ID)
	old.Signal(syscall.SIGSTOP)
	defer old.Signal(syscall.SIGCONT)
	still := time.Duration(700+c.random.IntN(2300)) * time.Millisecond
	resume := time.Now().Add(still)
	var waiting sync.WaitGroup
	for time.Now().Before(resume) {
		res, err := m.Propose(ctx, planner.SetRegister{Key: "floor", Value: []byte("x")})
		if err != nil {
			t.Fatalf("nobody takes over: %v", err)
		}
		floor.Store(res.Version)
		waiting.Go(ask)
		time.Sleep(50 * time.Millisecond)
	}
	old.Signal(syscall.SIGCONT)
	for range 100 {
		waiting.Go(ask)
		time.Sleep(5 * time.Millisecond)
	}
	waiting.Wait()
	defer func() {
		if t.Failed() {
			c.tell(t)
		}
	}()
	eventually(t, old.ID+" knows that it leads no more", func() bool { return c.coreTerm(t, old.ID) > term })
	if refusals.Load()+failures.Load() == 0 {
		t.Errorf("%s answered each of %d reads, though another leads; the test proved nothing", old.ID, answers.Load())
	}
	t.Logf("%s stood still for %v: %d reads refused, %d failed, %d answered", old.ID, still, refusals.Load(), failures.Load(), answers.Load())
}

// coreTerm is the term of the group core that a node says it is in.
func (c *cluster) coreTerm(t *testing.T, id string) uint64 {
	for _, m := range c.members[1].ClusterStatus(t.Context()).Members {
		if m.ID == id {
			return m.Node.Core.Term
		}
	}
	return 0
}

// tell logs where everybody stands.
func (c *cluster) tell(t *testing.T) {
	for _, m := range c.members[1].ClusterStatus(t.Context()).Members {
		t.Logf("%s: %+v; %s", m.ID, m.Node.Core, m.Error)
	}
	for _, n := range c.Nodes {
		t.Logf("%s said: %s", n.ID, n.LastWords())
	}
}
