package control

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/lead"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/wire/control"
	"github.com/yardmaster/yardmaster/core/wire/control/rpc"
)

// service fulfils the generated interface.
type service struct {
	rpc.UnimplementedControlServer
	Config

	closing   chan struct{}  // closed when the server is
	receivers sync.WaitGroup // of feeds
}

// Register makes the worker a member and starts its lease.
func (s *service) Register(ctx context.Context, req *control.RegisterRequest) (*control.RegisterResponse, error) {
	if leader, ok := s.elsewhere(); ok {
		return leader.Register(ctx, req)
	}
	w, err := control.ToWorker(req.GetWorker())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	w.Epoch = 0
	res, err := s.propose(ctx, planner.RegisterWorker{Worker: w, IfAbsent: req.GetIfAbsent()})
	if err != nil {
		return nil, err
	}
	s.Leases.Grant(s.Clock.Now(), w.ID, res.Epoch)
	if res.Changed {
		s.Logger.Info("worker registered", "worker", w.ID, "epoch", res.Epoch, "role", w.Role.String(), "engine", w.Engine, "url", w.URL)
	}
	ttl, every := s.times()
	return &control.RegisterResponse{Epoch: uint64(res.Epoch), ClusterId: s.Planner.ClusterID(), LeaseTtlMs: ttl, RenewEveryMs: every}, nil
}

// Renew extends the lease. It costs no log entry.
func (s *service) Renew(ctx context.Context, req *control.RenewRequest) (*control.RenewResponse, error) {
	if leader, ok := s.elsewhere(); ok {
		return leader.Renew(ctx, req)
	}
	if !s.Planner.Leading() {
		return nil, errNotLeading
	}
	id, epoch := fleet.WorkerID(req.GetId()), fleet.Epoch(req.GetEpoch())
	verdict, draining := s.Leases.Renew(s.Clock.Now(), s.Planner.View(), id, epoch, control.ToStats(req.GetStats()))
	ttl, every := s.times()
	resp := &control.RenewResponse{State: control.LeaseState_LEASE_STATE_UNKNOWN, LeaseTtlMs: ttl, RenewEveryMs: every, Draining: draining}
	switch verdict {
	case lead.Held:
		resp.State = control.LeaseState_LEASE_STATE_HELD
	case lead.Superseded:
		resp.State = control.LeaseState_LEASE_STATE_SUPERSEDED
	case lead.Unknown:
	case lead.NotYet:
		return nil, errNotYet
	}
	return resp, nil
}

// Drain takes the worker out of new placements.
func (s *service) Drain(ctx context.Context, req *control.DrainRequest) (*control.DrainResponse, error) {
	if leader, ok := s.elsewhere(); ok {
		return leader.Drain(ctx, req)
	}
	_, err := s.propose(ctx, planner.DrainWorker{ID: fleet.WorkerID(req.GetId()), Epoch: fleet.Epoch(req.GetEpoch())})
	if err != nil {
		return nil, err
	}
	s.Logger.Info("worker draining", "worker", req.GetId(), "epoch", req.GetEpoch())
	return &control.DrainResponse{}, nil
}

// Leave ends the worker's epoch. One that is gone has left already.
func (s *service) Leave(ctx context.Context, req *control.LeaveRequest) (*control.LeaveResponse, error) {
	if leader, ok := s.elsewhere(); ok {
		return leader.Leave(ctx, req)
	}
	_, err := s.propose(ctx, planner.LeaveWorker{ID: fleet.WorkerID(req.GetId()), Epoch: fleet.Epoch(req.GetEpoch())})
	if err != nil && status.Code(err) != codes.NotFound {
		return nil, err
	}
	s.Logger.Info("worker left", "worker", req.GetId(), "epoch", req.GetEpoch())
	return &control.LeaveResponse{}, nil
}

func (s *service) times() (ttlMS, everyMS int64) {
	c := s.Leases.Config()
	return c.TTL.Milliseconds(), c.RenewEvery.Milliseconds()
}

// elsewhere is the leader's service when another node leads and can be asked.
func (s *service) elsewhere() (rpc.ControlClient, bool) {
	if s.Leader == nil || s.Planner.Leading() {
		return nil, false
	}
	return s.Leader()
}

// reachable is nil when this planner leads or can ask the one that does.
func (s *service) reachable() error {
	if s.Planner.Leading() {
		return nil
	}
	if _, ok := s.elsewhere(); ok {
		return nil
	}
	return errNotLeading
}

// handedOn serves what another planner hands on. It hands nothing on itself: two
// planners that take each other for the leader must not play ball.
type handedOn struct{ *service }

// Register is the leader's, or refused.
func (h handedOn) Register(ctx context.Context, req *control.RegisterRequest) (*control.RegisterResponse, error) {
	return onlyLeading(ctx, h, req, h.service.Register)
}

// Renew is the leader's, or refused.
func (h handedOn) Renew(ctx context.Context, req *control.RenewRequest) (*control.RenewResponse, error) {
	return onlyLeading(ctx, h, req, h.service.Renew)
}

// Drain is the leader's, or refused.
func (h handedOn) Drain(ctx context.Context, req *control.DrainRequest) (*control.DrainResponse, error) {
	return onlyLeading(ctx, h, req, h.service.Drain)
}

// Leave is the leader's, or refused.
func (h handedOn) Leave(ctx context.Context, req *control.LeaveRequest) (*control.LeaveResponse, error) {
	return onlyLeading(ctx, h, req, h.service.Leave)
}

// Feed is refused: a planner takes its workers' feeds itself.
func (h handedOn) Feed(rpc.Control_FeedServer) error {
	return status.Error(codes.Unimplemented, "feeds are not handed on")
}

func onlyLeading[Req, Resp any](ctx context.Context, h handedOn, req Req, do func(context.Context, Req) (Resp, error)) (Resp, error) {
	var none Resp
	if !h.Planner.Leading() {
		return none, errNotLeading
	}
	return do(ctx, req)
}

// errNotLeading sends the worker to another planner.
var errNotLeading = status.Error(codes.Unavailable, "this planner does not lead")

// errNotYet asks the worker to come again, or to try another planner. Answering
// that its epoch is unknown would make it register anew for nothing.
var errNotYet = status.Error(codes.Unavailable, "this planner has not heard of the worker's epoch yet")

// propose maps both ways a command can fail to a gRPC status. Details of the
// inside go to the log only.
func (s *service) propose(ctx context.Context, cmd planner.Command) (planner.Result, error) {
	if !s.Planner.Leading() {
		return planner.Result{}, errNotLeading
	}
	res, err := s.Planner.Propose(ctx, cmd)
	switch {
	case errors.Is(err, planner.ErrInvalid):
		return res, status.Error(codes.InvalidArgument, err.Error())
	case err != nil:
		// Every command of a worker may be repeated, so even an unknown outcome
		// is only unavailable.
		s.Logger.Warn("command of a worker not committed", "error", err)
		return res, status.Error(codes.Unavailable, "the change could not be committed now")
	}
	return res, resultStatus(res)
}

func resultStatus(res planner.Result) error {
	err := res.Err()
	switch res.Code {
	case planner.OK, planner.Ignored:
		return nil
	case planner.StaleEpoch, planner.UnknownWorker:
		return status.Error(codes.NotFound, err.Error())
	case planner.Taken:
		return status.Error(codes.AlreadyExists, "another worker has this id")
	case planner.Full:
		return status.Error(codes.ResourceExhausted, err.Error())
	case planner.Refused:
		return status.Error(codes.InvalidArgument, err.Error())
	case planner.Conflict, planner.UnknownTenant, planner.StaleWindow, planner.UnknownPolicy, planner.Exists, planner.Bound,
		planner.Pinned, planner.Quarantined, planner.NothingThere, planner.ClockOff: // of no command of a worker
	}
	return status.Error(codes.Internal, "internal error")
}
