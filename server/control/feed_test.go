package control

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/wire/control"
	"github.com/yardmaster/yardmaster/core/wire/control/rpc"
)

// memoryPrefix is the prefix state without Raft.
type memoryPrefix struct {
	state  *prefix.State
	fail   atomic.Bool
	panics atomic.Bool
}

func (p *memoryPrefix) Propose(ctx context.Context, f *prefix.Frame) (prefix.Outcome, error) {
	if _, has := ctx.Deadline(); !has {
		return 0, errors.New("a proposal without a deadline")
	}
	if p.panics.Load() {
		panic("invariant broken")
	}
	if p.fail.Load() {
		return 0, errors.New("dial 10.0.0.7: secret")
	}
	return p.state.Apply(f), nil
}

func (p *memoryPrefix) State() *prefix.State { return p.state }

const feedPatience = 20 * time.Second

func openFeed(t *testing.T, r *rig, worker string, epoch uint64) rpc.Control_FeedClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), feedPatience)
	t.Cleanup(cancel)
	f, err := r.client.Feed(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Send(&control.FeedRequest{Body: &control.FeedRequest_Hello{Hello: &control.FeedHello{Worker: worker, Epoch: epoch}}}); err != nil {
		t.Fatal(err)
	}
	return f
}

func sendFrame(t *testing.T, f rpc.Control_FeedClient, frame prefix.Frame) {
	t.Helper()
	err := f.Send(&control.FeedRequest{Body: &control.FeedRequest_Frame{Frame: control.FromFrame(&frame)}})
	if err != nil && !errors.Is(err, io.EOF) { // the reason then comes by Recv
		t.Fatal(err)
	}
}

func recv(t *testing.T, f rpc.Control_FeedClient) *control.FeedResponse {
	t.Helper()
	m, err := f.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// register makes a worker a member, so that it may open a feed.
func register(t *testing.T, r *rig) (worker string, epoch uint64) {
	t.Helper()
	reg, err := r.client.Register(t.Context(), &control.RegisterRequest{Worker: workerMessage("a")})
	if err != nil {
		t.Fatal(err)
	}
	return "w", reg.GetEpoch()
}

func TestLifeOfAFeed(t *testing.T) {
	r := newRig(t)
	w, epoch := register(t, r)
	base := prefix.Frame{Worker: fleet.WorkerID(w), Epoch: fleet.Epoch(epoch)}
	f := openFeed(t, r, w, epoch)
	if p := recv(t, f).GetPosition(); p == nil || p.GetExact() || p.GetLast() != 0 {
		t.Fatalf("first answer %v, want a position of nothing", p)
	}
	begin, end, delta := base, base, base
	begin.Kind, begin.Repair = prefix.FrameBegin, 1
	end.Kind, end.Repair = prefix.FrameEnd, 1
	sendFrame(t, f, begin)
	sendFrame(t, f, end)
	if m := recv(t, f); m.GetPosition() != nil || m.GetApplied() != 0 {
		t.Fatalf("the end of a repair was answered by %v", m)
	}
	delta.Kind, delta.First, delta.Last, delta.Stores = prefix.FrameDelta, 1, 1, []prefix.Hash{7}
	delta.Sum = prefix.Hash(7).Sum()
	sendFrame(t, f, delta)
	if m := recv(t, f); m.GetApplied() != 1 {
		t.Fatalf("a frame was answered by %v", m)
	}
	gap := delta
	gap.First, gap.Last = 5, 5
	sendFrame(t, f, gap)
	if p := recv(t, f).GetPosition(); p == nil || p.GetExact() || p.GetLast() != 1 || len(p.GetSums()) == 0 {
		t.Fatalf("a gap was answered by %v", p)
	}
	sendFrame(t, f, gap) // no second question before a repair has begun
	begin.Repair, end.Repair = 2, 2
	end.Last, end.Sum = 5, delta.Sum
	sendFrame(t, f, begin)
	sendFrame(t, f, end)
	if m := recv(t, f); m.GetApplied() != 5 {
		t.Fatalf("the end of a repair was answered by %v", m)
	}
	if err := f.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("a feed that ended: %v", err)
	}
}

func TestFeedRefusals(t *testing.T) {
	r := newRig(t)
	w, epoch := register(t, r)
	want := func(what string, f rpc.Control_FeedClient, code codes.Code) {
		t.Helper()
		for { // past the position
			if _, err := f.Recv(); err != nil {
				wantCode(t, what, err, code)
				return
			}
		}
	}
	want("a stale epoch", openFeed(t, r, w, epoch+1), codes.NotFound)
	want("nobody", openFeed(t, r, "", 0), codes.InvalidArgument)
	frame := prefix.Frame{Kind: prefix.FrameDelta, Worker: fleet.WorkerID(w), Epoch: fleet.Epoch(epoch), First: 1, Last: 1, Stores: []prefix.Hash{1}}
	for what, tt := range map[string]struct {
		edit func(*prefix.Frame)
		want codes.Code
	}{
		"another worker's frame": {func(f *prefix.Frame) { f.Worker = "x" }, codes.PermissionDenied},
		"another epoch's frame":  {func(f *prefix.Frame) { f.Epoch++ }, codes.PermissionDenied},
		"a detach":               {func(f *prefix.Frame) { f.Kind, f.Stores = prefix.FrameDetach, nil }, codes.PermissionDenied},
		"a frame of no kind":     {func(f *prefix.Frame) { f.Kind = 0 }, codes.InvalidArgument},
		"a count that is wrong":  {func(f *prefix.Frame) { f.Last = 9 }, codes.InvalidArgument},
	} {
		f, bad := openFeed(t, r, w, epoch), frame
		tt.edit(&bad)
		sendFrame(t, f, bad)
		want(what, f, tt.want)
	}
	f := openFeed(t, r, w, epoch)
	recv(t, f)
	r.prefix.fail.Store(true)
	sendFrame(t, f, frame)
	want("no commit", f, codes.Unavailable)
	r.prefix.fail.Store(false)
	r.prefix.panics.Store(true)
	want("a panic", openFeed(t, r, w, epoch), codes.Internal)
	r.prefix.panics.Store(false)
	r.planner.follower.Store(true)
	want("a follower", openFeed(t, r, w, epoch), codes.Unavailable)
}

// A server that closes ends its feeds: it does not wait for workers to do so.
func TestCloseEndsFeeds(t *testing.T) {
	r := newRig(t)
	w, epoch := register(t, r)
	f := openFeed(t, r, w, epoch)
	recv(t, f)
	ctx, cancel := context.WithTimeout(t.Context(), feedPatience)
	defer cancel()
	r.server.Close(ctx)
	if ctx.Err() != nil {
		t.Error("the server waited for an open feed")
	}
	if _, err := f.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the feed ended with %v", err)
	}
}
