package control

import (
	"context"
	"errors"
	"io"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/wire/control"
	"github.com/yardmaster/yardmaster/core/wire/control/rpc"
)

// Prefix is the prefix state that feeds go into.
type Prefix interface {
	// Propose brings a frame into force and says what became of it. An error
	// means that this is not known.
	Propose(ctx context.Context, f *prefix.Frame) (prefix.Outcome, error)
	// State is the state from memory.
	State() *prefix.State
}

// feedQueue is how many messages of a feed wait for the one that is applied.
// Beyond them the worker is held back, by gRPC's flow control.
const feedQueue = 8

// Feed carries one worker's KV events into the prefix state.
func (s *service) Feed(stream grpc.BidiStreamingServer[control.FeedRequest, control.FeedResponse]) error {
	if s.Prefix == nil {
		return status.Error(codes.Unimplemented, "this planner keeps no prefix state")
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	f := &feed{service: s, stream: stream, in: make(chan *control.FeedRequest, feedQueue), ended: make(chan error, 1)}
	// Recv returns at the latest when this handler has; Close waits for it.
	s.receivers.Go(func() { f.receive(ctx) })
	return f.run(ctx)
}

// feed is one open feed. run owns it.
type feed struct {
	*service
	stream rpc.Control_FeedServer
	in     chan *control.FeedRequest
	ended  chan error // why receive has ended

	worker fleet.WorkerID
	epoch  fleet.Epoch
	asked  bool // a repair was asked for and has not begun
}

func (f *feed) receive(ctx context.Context) {
	for {
		m, err := f.stream.Recv()
		if err != nil {
			f.ended <- err
			return
		}
		select {
		case f.in <- m:
		case <-ctx.Done():
			return
		}
	}
}

func (f *feed) run(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			f.Logger.Error("panic in a feed", "worker", f.worker, "panic", p, "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "internal error")
		}
	}()
	if err := f.hello(ctx); err != nil {
		return err
	}
	for {
		m, err := f.next(ctx)
		if err != nil {
			return err
		}
		if m == nil {
			return nil
		}
		if err := f.frame(ctx, m.GetFrame()); err != nil {
			return err
		}
	}
}

// next is the next message, or nil when the worker has closed the feed.
func (f *feed) next(ctx context.Context) (*control.FeedRequest, error) {
	select { // what came before the end counts
	case m := <-f.in:
		return m, nil
	default:
	}
	select {
	case m := <-f.in:
		return m, nil
	case err := <-f.ended:
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		return nil, err
	case <-f.closing:
		return nil, status.Error(codes.Unavailable, "this planner is stopping")
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func (f *feed) hello(ctx context.Context) error {
	wait, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	m, err := f.next(wait)
	if err != nil {
		return err
	}
	f.worker, f.epoch = fleet.WorkerID(m.GetHello().GetWorker()), fleet.Epoch(m.GetHello().GetEpoch())
	if err := f.reachable(); err != nil {
		return err
	}
	attach := prefix.Frame{Kind: prefix.FrameAttach, Worker: f.worker, Epoch: f.epoch}
	if err := attach.Validate(); err != nil {
		return status.Error(codes.InvalidArgument, "a feed begins with the worker's id and epoch")
	}
	if err := f.registered(wait); err != nil {
		return err
	}
	out, err := f.propose(ctx, &attach)
	switch {
	case err != nil:
		return err
	case out == prefix.NoRoom:
		return status.Error(codes.ResourceExhausted, "the prefix index has no room for another worker")
	}
	return f.tellPosition(wait)
}

// catchUp is how often a planner that does not lead looks whether it has heard
// yet of what the leader did.
const catchUp = 2 * time.Millisecond

// registered waits until this planner knows the worker's epoch. An epoch is the
// index of its entry, so a view that is past it and does not show it never will.
func (f *feed) registered(ctx context.Context) error {
	return until(ctx, func() error {
		switch view := f.Planner.View(); {
		case view.Current(f.worker, f.epoch) >= 0:
			return nil
		case view.Index >= uint64(f.epoch) || f.Planner.Leading():
			return errNoEpoch
		default:
			return errBehind
		}
	})
}

var errBehind = errors.New("this planner is behind the leader")

// until calls look until it says something else than errBehind.
func until(ctx context.Context, look func() error) error {
	err := look()
	if !errors.Is(err, errBehind) {
		return err
	}
	tick := time.NewTicker(catchUp)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return status.Error(codes.Unavailable, err.Error())
		case <-tick.C:
			if err := look(); !errors.Is(err, errBehind) {
				return err
			}
		}
	}
}

var errNoEpoch = status.Error(codes.NotFound, "no such worker of that epoch")

// tellPosition says how far the worker's events are known. On a planner that does
// not lead that may be a little less than the leader knows, which costs the worker
// frames that come to nothing.
func (f *feed) tellPosition(ctx context.Context) error {
	var p prefix.Position
	err := until(ctx, func() error {
		var ok bool
		if p, ok = f.Prefix.State().Position(f.worker, f.epoch); ok {
			return nil
		}
		if f.Planner.Leading() || f.Planner.View().Current(f.worker, f.epoch) < 0 {
			return errNoEpoch
		}
		return errBehind // it is attached, and this planner has yet to hear of it
	})
	if err != nil {
		return err
	}
	f.asked = !p.Exact
	return f.stream.Send(&control.FeedResponse{Body: &control.FeedResponse_Position{Position: control.FromPosition(&p)}})
}

// frame applies one frame and answers it.
func (f *feed) frame(ctx context.Context, m *control.PrefixFrame) error {
	frame, err := control.ToFrame(m)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if frame.Worker != f.worker || frame.Epoch != f.epoch {
		return status.Error(codes.PermissionDenied, "a feed speaks for one worker")
	}
	switch frame.Kind {
	case prefix.FrameDelta, prefix.FramePart, prefix.FrameEnd:
	case prefix.FrameBegin:
		f.asked = false
	case prefix.FrameAttach, prefix.FrameDetach, prefix.FrameSweep:
		fallthrough
	default:
		return status.Error(codes.PermissionDenied, "workers tell changes only")
	}
	if err := f.reachable(); err != nil {
		return err
	}
	out, err := f.propose(ctx, &frame)
	switch {
	case err != nil:
		return err
	case out == prefix.Unattached:
		return errNoEpoch
	case out == prefix.Gap, out == prefix.Mismatch, out == prefix.Inexact:
		if f.asked {
			return nil
		}
		f.Logger.Warn("KV events of a worker do not add up; asking for a repair", "worker", f.worker, "epoch", uint64(f.epoch), "outcome", out.String())
		wait, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return f.tellPosition(wait)
	case frame.Kind == prefix.FrameDelta || frame.Kind == prefix.FrameEnd:
		return f.stream.Send(&control.FeedResponse{Body: &control.FeedResponse_Applied{Applied: frame.Last}})
	}
	return nil
}

func (f *feed) propose(ctx context.Context, frame *prefix.Frame) (prefix.Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := f.Prefix.Propose(ctx, frame)
	if err != nil {
		f.Logger.Warn("KV events of a worker not committed", "worker", f.worker, "error", err)
		return out, status.Error(codes.Unavailable, "the change could not be committed now")
	}
	return out, nil
}
