package raftstore

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/raftstore/call"
	"github.com/yardmaster/yardmaster/raftstore/peer"
)

// Whoever leads, a planner of an older release among newer ones included, every
// node proposes and reads; and afterwards, when it has been replaced.
func TestCallsAmongOldAndNew(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	nodes := y.voters(3, func(c *Config) { c.noCalls = c.NodeID == "n1" })
	lead := func(n *node, round string) {
		t.Helper()
		y.until(n.cfg.NodeID+" leads", func() bool {
			if n.Leading() {
				return true
			}
			leads, _ := y.leader(nodes)
			_ = leads.Transfer(within(t, 5*time.Second), n.cfg.NodeID)
			return n.Leading()
		})
		for _, from := range nodes {
			id := from.cfg.NodeID + "-" + n.cfg.NodeID + round
			propose(t, from, id)
			if v, err := from.Read(within(t, 20*time.Second), Linearizable()); err != nil || v.Find(idOf(id)) < 0 {
				t.Errorf("%s reads %v, %v", from.cfg.NodeID, v, err)
			}
		}
	}
	lead(nodes[0], "")
	lead(nodes[1], "")
	nodes[0].stop()
	nodes[0].cfg.noCalls = false
	nodes[0].mustStart("")
	y.ready(nodes[0])
	lead(nodes[0], "-anew")
}

// Calls are answered as the service for peers would.
func TestTake(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	nodes := y.voters(3, nil)
	leads, others := y.leader(nodes)
	from := others[0]
	ctx := within(t, 30*time.Second)
	to := call.Target{ID: leads.cfg.NodeID, Addr: leads.addr}
	ask := func(cluster string, kind call.Kind, body []byte) error {
		_, err := from.net.calls.Call(ctx, to, call.Request{Kind: kind, Cluster: cluster, Body: body})
		return err
	}
	ours := from.ClusterID()
	for name, err := range map[string]error{
		"another cluster":     ask("other", callReadIndex, nil),
		"no cluster":          ask("", callPropose, nil),
		"unknown":             ask(ours, 77, nil),
		"a malformed entry":   ask(ours, callPropose, []byte{1}),
		"a malformed request": ask(ours, callReadIndex, []byte{1}),
	} {
		if !errors.Is(err, call.ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	entry, err := from.machine.Encode(NewRequestID(), planner.RegisterWorker{Worker: worker("w", "a")})
	if err != nil {
		t.Fatal(err)
	}
	_, _, term := leads.groups.Load().core.Leader()
	for name, c := range map[string]struct {
		to   *node
		req  *peer.ProposeRequest
		want error
	}{
		"well":            {leads, &peer.ProposeRequest{Group: peer.Group_GROUP_CORE, Entry: entry, Term: term}, nil},
		"a follower":      {others[1], &peer.ProposeRequest{Group: peer.Group_GROUP_CORE, Entry: entry, Term: term}, ErrNotLeader},
		"a later term":    {leads, &peer.ProposeRequest{Group: peer.Group_GROUP_CORE, Entry: entry, Term: term + 99}, ErrNotLeader},
		"no group":        {leads, &peer.ProposeRequest{Entry: entry}, ErrRefused},
		"no entry":        {leads, &peer.ProposeRequest{Group: peer.Group_GROUP_CORE}, ErrRefused},
		"no frames":       {leads, &peer.ProposeRequest{Group: peer.Group_GROUP_PREFIX, Entry: []byte("x")}, nil},
		"long ago":        {leads, &peer.ProposeRequest{Group: peer.Group_GROUP_CORE, Entry: entry, Since: 1}, nil},
		"nobody there":    {nil, &peer.ProposeRequest{}, ErrNoLeader},
		"this node":       {from, &peer.ProposeRequest{}, ErrNoLeader},
		"frames, unknown": {others[1], &peer.ProposeRequest{Group: peer.Group_GROUP_PREFIX, Term: 1 << 40}, ErrNotLeader},
	} {
		id, addr := "nobody", "127.0.0.1:1"
		if c.to != nil {
			id, addr = c.to.cfg.NodeID, c.to.addr
		}
		_, err := from.forward(ctx, id, addr, c.req)
		if name == "no frames" { // refused, or not the leader of that group
			if !errors.Is(err, ErrRefused) && !errors.Is(err, ErrNotLeader) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// A leader that faults tells those who wait for it, who find the next one.
func TestFaultEndsCalls(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	nodes := y.voters(3, nil)
	leads, others := y.leader(nodes)
	var all sync.WaitGroup
	for _, from := range others {
		all.Go(func() {
			for range 20 {
				res, err := from.ProposeAs(within(t, waitTime), NewRequestID(), planner.RegisterWorker{Worker: worker(from.cfg.NodeID, "a")})
				if err != nil && !errors.Is(err, ErrAmbiguous) && !errors.Is(err, ErrNoLeader) || err == nil && res.Err() != nil {
					t.Errorf("%s: %+v, %v", from.cfg.NodeID, res, err)
				}
			}
		})
	}
	leads.trip(errors.New("the disk is gone"))
	all.Wait()
	leads.stop()
	propose(t, others[0], "after")
	if _, err := others[1].ProposeFrame(within(t, 30*time.Second), &prefix.Frame{}); errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a frame: %v", err)
	}
}
