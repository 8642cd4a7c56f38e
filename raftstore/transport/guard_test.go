package transport

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wire is an inner transport whose heartbeats the test delivers.
type wire struct {
	*raft.InmemTransport
	deliver func(raft.RPC)
}

func (w *wire) SetHeartbeatHandler(cb func(raft.RPC)) { w.deliver = cb }

type node struct {
	state raft.RaftState
	term  uint64
}

func (n node) State() raft.RaftState { return n.state }
func (n node) CurrentTerm() uint64   { return n.term }

func newWire() *wire {
	_, t := raft.NewInmemTransport("a")
	return &wire{InmemTransport: t}
}

// A heartbeat may bypass the main loop only where it changes nothing there.
func TestHeartbeatBypassesOnlyWhereHarmless(t *testing.T) {
	tests := []struct {
		name   string
		node   Node
		bypass bool
	}{
		{"follower, equal term", node{raft.Follower, 5}, true},
		{"follower, newer term", node{raft.Follower, 4}, false},
		{"follower, older term", node{raft.Follower, 6}, false},
		{"candidate, equal term", node{raft.Candidate, 5}, false},
		{"leader, equal term", node{raft.Leader, 5}, false},
		{"no node yet", nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inner := newWire()
			g := Guard(inner)
			defer func() {
				if err := g.Close(); err != nil {
					t.Error(err)
				}
			}()
			if tt.node != nil {
				g.Watch(tt.node)
			}
			var bypassed atomic.Bool
			g.SetHeartbeatHandler(func(raft.RPC) { bypassed.Store(true) })
			done := make(chan struct{})
			go func() {
				defer close(done)
				inner.deliver(raft.RPC{Command: &raft.AppendEntriesRequest{Term: 5}})
			}()
			queued := false
			select {
			case <-done:
			case <-g.Consumer():
				queued = true
				<-done
			}
			if bypassed.Load() != tt.bypass || queued == tt.bypass {
				t.Errorf("bypassed %v, queued %v", bypassed.Load(), queued)
			}
		})
	}
}

func TestClosedTransportIsSilent(t *testing.T) {
	inner := newWire()
	_, peer := raft.NewInmemTransport("b")
	inner.Connect("b", peer)
	g := Guard(inner)
	g.SetHeartbeatHandler(func(raft.RPC) { t.Error("a heartbeat came through") })
	for range 2 {
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for name, err := range map[string]error{
		"RequestVote":     g.RequestVote("b", "b", &raft.RequestVoteRequest{}, &raft.RequestVoteResponse{}),
		"RequestPreVote":  g.RequestPreVote("b", "b", &raft.RequestPreVoteRequest{}, &raft.RequestPreVoteResponse{}),
		"AppendEntries":   g.AppendEntries("b", "b", &raft.AppendEntriesRequest{}, &raft.AppendEntriesResponse{}),
		"TimeoutNow":      g.TimeoutNow("b", "b", &raft.TimeoutNowRequest{}, &raft.TimeoutNowResponse{}),
		"InstallSnapshot": g.InstallSnapshot("b", "b", &raft.InstallSnapshotRequest{}, &raft.InstallSnapshotResponse{}, nil),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s = %v", name, err)
		}
	}
	if _, err := g.AppendEntriesPipeline("b", "b"); !errors.Is(err, ErrClosed) {
		t.Errorf("AppendEntriesPipeline = %v", err)
	}
	answer := make(chan raft.RPCResponse, 1)
	inner.deliver(raft.RPC{Command: &raft.AppendEntriesRequest{Term: 5}, RespChan: answer})
	select {
	case r := <-answer:
		if !errors.Is(r.Error, ErrClosed) {
			t.Errorf("a heartbeat after Close got %v", r.Error)
		}
	case <-time.After(10 * time.Second):
		t.Error("a heartbeat after Close hangs")
	}
}
