package control

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/yardmaster/yardmaster/core/lead"
	"github.com/yardmaster/yardmaster/core/wire/control"
	"github.com/yardmaster/yardmaster/core/wire/control/rpc"
)

// startFollower is a planner that replicates leader's state and hands on to it.
// Its view is leader's own; its prefix state too.
func startFollower(t *testing.T, leader *rig) (client rpc.ControlClient, known func(bool)) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	var tasks sync.WaitGroup
	listener := func() net.Listener {
		ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return ln
	}
	dial := func(addr string) rpc.ControlClient {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return rpc.NewControlClient(conn)
	}
	peers, own := listener(), listener()
	toLeader, there := dial(peers.Addr().String()), true
	var mu sync.Mutex // guards there
	follower := &following{leader.planner}
	srv, err := New(Config{
		Planner: follower, Leases: lead.NewLeases(lead.Config{}), Prefix: leader.prefix,
		Leader: func() (rpc.ControlClient, bool) {
			mu.Lock()
			defer mu.Unlock()
			return toLeader, there
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	tasks.Go(func() { _ = leader.server.ServePeers(peers) })
	tasks.Go(func() { _ = srv.Serve(own) })
	t.Cleanup(func() {
		_ = peers.Close() // the leader's server ends later than this test's goroutines are counted
		srv.Close(ctx)
		leader.server.peers.Stop()
		tasks.Wait()
	})
	return dial(own.Addr().String()), func(b bool) {
		mu.Lock()
		defer mu.Unlock()
		there = b
	}
}

// following is a planner's state on a node that does not lead.
type following struct{ *memoryPlanner }

func (following) Leading() bool { return false }

func TestWorkersMayCallAnyPlanner(t *testing.T) {
	leader := newRig(t)
	client, known := startFollower(t, leader)
	reg, err := client.Register(t.Context(), &control.RegisterRequest{Worker: workerMessage("i1")})
	if err != nil || reg.GetEpoch() == 0 {
		t.Fatalf("%v, %v", reg, err)
	}
	renewed, err := client.Renew(t.Context(), &control.RenewRequest{Id: "w", Epoch: reg.GetEpoch()})
	if err != nil || renewed.GetState() != control.LeaseState_LEASE_STATE_HELD {
		t.Errorf("renew: %v, %v", renewed, err)
	}
	stream, err := client.Feed(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(hello("w", reg.GetEpoch())); err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || m.GetPosition() == nil {
		t.Errorf("feed: %v, %v", m, err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
	if _, err := client.Drain(t.Context(), &control.DrainRequest{Id: "w", Epoch: reg.GetEpoch()}); err != nil {
		t.Error(err)
	}
	if v := leader.planner.View(); !v.Workers[0].Draining {
		t.Error("the drain did not reach the leader")
	}
	_, err = client.Register(t.Context(), &control.RegisterRequest{})
	wantCode(t, "the leader's refusal", err, codes.InvalidArgument)

	known(false)
	_, err = client.Renew(t.Context(), &control.RenewRequest{Id: "w", Epoch: reg.GetEpoch()})
	wantCode(t, "without a leader", err, codes.Unavailable)
	known(true)
	leader.planner.follower.Store(true)
	_, err = client.Renew(t.Context(), &control.RenewRequest{Id: "w", Epoch: reg.GetEpoch()})
	wantCode(t, "handed on to one that does not lead", err, codes.Unavailable)
	leader.planner.follower.Store(false)
	if _, err := client.Leave(t.Context(), &control.LeaveRequest{Id: "w", Epoch: reg.GetEpoch()}); err != nil {
		t.Error(err)
	}
	if n := len(leader.planner.View().Workers); n != 0 {
		t.Errorf("%d workers after the leave", n)
	}
}

// TestAFeedWaitsForTheView opens a feed at a planner that has not heard of the
// worker yet.
func TestAFeedWaitsForTheView(t *testing.T) {
	leader := newRig(t)
	client, _ := startFollower(t, leader)
	stream, err := client.Feed(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(hello("w", 1)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond) // whoever comes first, the outcome is the same
	if _, err := leader.client.Register(t.Context(), &control.RegisterRequest{Worker: workerMessage("i1")}); err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || m.GetPosition() == nil {
		t.Fatalf("%v, %v", m, err)
	}
	if _, ok := leader.prefix.state.Position("w", 1); !ok {
		t.Error("the worker is not attached")
	}
}

func hello(worker string, epoch uint64) *control.FeedRequest {
	return &control.FeedRequest{Body: &control.FeedRequest_Hello{Hello: &control.FeedHello{Worker: worker, Epoch: epoch}}}
}
