package raftstore

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/raftstore/transport/faultnet"
)

// A leader that is cut off, which is what a paused one is to the others, answers
// no read as if nothing had happened.
func TestIsolatedLeaderReadsNothingOld(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.net = faultnet.New(1)
	nodes := y.voters(3, nil)
	leads, others := y.leader(nodes)
	propose(t, leads, "before")
	y.net.Isolate(leads.cfg.NodeID)
	// At once, while its lease still runs.
	read := func(c Consistency) error {
		_, err := leads.Read(within(t, 300*time.Millisecond), c)
		return err
	}
	if err := read(Linearizable()); err == nil {
		t.Error("an isolated leader reads linearizably")
	}
	propose(t, others[0], "after")
	if err := read(Stale(100*time.Millisecond, 0)); !errors.Is(err, ErrStale) {
		t.Errorf("a fresh enough read on an isolated node: %v", err)
	}
	if err := read(Stale(0, 1)); err != nil {
		t.Errorf("a read of any age: %v", err)
	}
	if err := read(Stale(0, 1<<40)); !errors.Is(err, ErrStale) {
		t.Errorf("a read of the future: %v", err)
	}
	if _, err := leads.Propose(within(t, 300*time.Millisecond), planner.DrainWorker{ID: "x", Epoch: 1}); !errors.Is(err, ErrNoLeader) && !errors.Is(err, ErrAmbiguous) {
		t.Errorf("a proposal on an isolated node: %v", err)
	}
	if leads.Ready() != nil {
		t.Error("a node that had caught up is not ready any more")
	}
	y.net.Heal()
	if v, err := leads.Read(within(t, 10*time.Second), Linearizable()); err != nil || v.Find("after") < 0 {
		t.Errorf("after the partition: %v, %v", v, err)
	}
}

// One-way cuts: nothing that was acknowledged is lost, and there is a leader
// soon after.
func TestAsymmetricPartition(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.net = faultnet.New(2)
	nodes := y.voters(3, nil)
	for i, n := range nodes {
		next := nodes[(i+1)%3]
		y.net.OneWay(n.cfg.NodeID, next.cfg.NodeID)
		id := "w" + strconv.Itoa(i)
		for _, at := range nodes {
			// A node may have to do without the leader; one of them reaches it.
			if _, err := at.Propose(within(t, 10*time.Second), planner.RegisterWorker{Worker: worker(id, "a")}); err == nil {
				break
			} else if at == nodes[2] {
				t.Fatalf("no node can change anything while %s does not reach %s: %v", n.cfg.NodeID, next.cfg.NodeID, err)
			}
		}
		y.net.Heal()
	}
	for _, n := range nodes {
		v, err := n.Read(within(t, 10*time.Second), Linearizable())
		if err != nil {
			t.Fatal(err)
		}
		for i := range nodes {
			if v.Find(idOf("w"+strconv.Itoa(i))) < 0 {
				t.Errorf("%s lost w%d", n.cfg.NodeID, i)
			}
		}
	}
}

// While leaders are killed under load, every counted increment is counted once:
// what was retried was not done twice, what was acknowledged is there.
func TestRetriesHaveOneEffect(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	nodes := y.voters(3, nil)
	leads, others := y.leader(nodes)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	y.until("level 2", func() bool { return others[0].FeatureLevel() >= 2 && others[1].FeatureLevel() >= 2 })
	stop := make(chan struct{})
	counts := make([]count, len(others))
	progress := make([]atomic.Int64, len(others))
	var all sync.WaitGroup
	for i, n := range others {
		all.Go(func() { counts[i] = increment(ctx, n, "counter-"+n.cfg.NodeID, stop, &progress[i]) })
	}
	on := func(what string) { // each of them counts a few times more
		t.Helper()
		for i := range progress {
			from := progress[i].Load()
			y.until("counting "+what, func() bool { return progress[i].Load() > from+5 || ctx.Err() != nil })
		}
	}
	on("before the leader is gone")
	leads.kill()
	y.leader(others)
	on("afterwards")
	close(stop)
	all.Wait()
	for i, n := range others {
		c := counts[i]
		if _, err := others[0].Read(ctx, Linearizable()); err != nil {
			t.Fatal(err)
		}
		r, _ := others[0].State().Register("counter-" + n.cfg.NodeID)
		got, _ := strconv.Atoi(string(r.Value))
		if c.err != nil || got < c.acknowledged || got > c.acknowledged+c.doubtful {
			t.Errorf("%s: register says %d; %+v", n.cfg.NodeID, got, c)
		}
		if c.conflicts > c.doubtful {
			t.Errorf("%s: a retry met its own first attempt: %+v", n.cfg.NodeID, c)
		}
		t.Logf("%s: %+v, longest wait %v", n.cfg.NodeID, c, c.longest)
	}
}

type count struct {
	acknowledged, doubtful, conflicts int
	longest                           time.Duration
	err                               error
}

// increment counts up a register of its own by compare-and-swap until stop.
func increment(ctx context.Context, n *node, key string, stop <-chan struct{}, progress *atomic.Int64) (c count) {
	var version uint64
	for value := 1; ; {
		select {
		case <-stop:
			return c
		default:
		}
		start := time.Now()
		res, err := n.Propose(ctx, planner.SetRegister{Key: key, Value: []byte(strconv.Itoa(value)), IfVersion: &version})
		c.longest = max(c.longest, time.Since(start))
		switch {
		case errors.Is(err, ErrAmbiguous):
			c.doubtful++
		case err != nil:
			c.err = err
			return c
		case errors.Is(res.Err(), planner.ErrConflict): // only after a doubtful one
			c.conflicts++
			version, value = res.Version, value+1
		case res.Err() != nil:
			c.err = res.Err()
			return c
		default:
			c.acknowledged++
			progress.Add(1)
			version, value = res.Version, value+1
		}
	}
}

// A gateway that the planners gave up while it could not be heard goes on with
// what it knows, learns that it was, and stops; another run of it comes in.
func TestGatewayIsGivenUp(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.net = faultnet.New(3)
	one := y.voters(1, func(c *Config) { c.ReapAfter = slower * time.Second })[0]
	g := y.node("g", func(c *Config) { c.Dir, c.Nonvoter, c.Join = "", true, []string{one.addr} }).mustStart("")
	y.ready(g)
	propose(t, one, "w1")
	y.sees(g, "w1")
	y.net.Isolate("g")
	y.until("the gateway is given up", func() bool { return !isMember(one.groups.Load(), "g") })
	propose(t, one, "w2")
	if err := errors.Join(g.Ready(), g.Fault()); err != nil || g.View().Find("w1") < 0 {
		t.Errorf("alone: %v, %+v", err, g.View().Workers)
	}
	y.net.Heal()
	y.until("it learns that it was", func() bool { return errors.Is(g.Fault(), ErrRemoved) })
	if g.Ready() != nil || g.View().Find("w1") < 0 {
		t.Error("what it knew is gone")
	}
	g.stop()
	g.mustStart("")
	y.ready(g)
	y.sees(g, "w2")
	y.members(one, "g n1+")
}
