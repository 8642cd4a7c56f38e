package assemble

import (
	"context"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/cmd/internal/timerslack"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/lead"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/core/traffic"
	"github.com/yardmaster/yardmaster/gpu/actuate"
	"github.com/yardmaster/yardmaster/gpu/launch"
	"github.com/yardmaster/yardmaster/raftstore"
)

// scaling is how a planner sizes pools. Its zero value only keeps what gateways count.
type scaling struct {
	config  config.Scale
	traffic *traffic.Book
	scaler  *lead.Scaler                    // nil where pools are not sized
	process atomic.Pointer[actuate.Process] // nil where no processes are started
	end     func()                          // ends the scaler, and waits for it; nil before it runs
}

// planned is a store whose plan is kept and followed.
type planned struct{ *raftstore.Store }

// Plan implements lead.PlanKeeper.
func (s planned) Plan() (*scale.Plan, uint64) { return s.State().Plan() }

// followed is a store as actuators follow it.
type followed struct{ *raftstore.Store }

// Plan implements actuate.Source.
func (s followed) Plan() *scale.Plan {
	plan, _ := s.State().Plan()
	return plan
}

// prepareScaling sets up what sizes pools. It runs with the planner's duties.
func (p *Planner) prepareScaling(process Process, c config.Scale) {
	p.scaling.config, p.scaling.traffic = c, traffic.NewBook()
	if !c.On() {
		return
	}
	p.scaling.scaler = lead.NewScaler(lead.ScaleConfig{
		Every: c.Interval, Limits: c.Limits, Pools: c.Named(),
		Limiter: scale.LimiterConfig{Budget: uint32(c.Budget), Hold: orNone(c.Hold)},
	}, lead.ScaleDuties{
		Planner: planned{p.store}, Policy: func() scale.Policy { return p.autoscaler(c.Policy) },
		Samples: p.leases.Samples, Traffic: p.scaling.traffic,
		Clock: process.Clock, Registry: process.Registry, Logger: process.Log,
	})
}

// autoscaler is whatever is bound, and else the configured policy, anew.
func (p *Planner) autoscaler(name string) scale.Policy {
	native, err := scale.PolicyNamed(name)
	if err != nil {
		native = scale.Policies()[0] // the settings admit no other names
	}
	if p.governing == nil {
		return native
	}
	return p.governing.Autoscaler(native)
}

// startScaling begins to size pools, and to do or say what is to be done about it.
func (p *Planner) startScaling(process Process) {
	s := &p.scaling
	if s.scaler == nil {
		return
	}
	s.end = background(s.scaler.Run)
	p.background(func(ctx context.Context) {
		actuate.Run(ctx, process.Clock, followed{p.store}, actuate.NewAdvisory(process.Registry, process.Log))
	})
}

// keepTraffic has what this process's gateway counts known to the planner, where there
// is no load hub.
func (p *Planner) keepTraffic(process Process) {
	p.background(func(ctx context.Context) {
		traffic.Keep(ctx, process.Clock, p.scaling.traffic, "gateway", func() []traffic.Totals { return traffic.Read(process.Registry) })
	})
}

// actuate starts and drains worker processes as the plan says, until the planner ends.
func (p *Planner) actuate(process Process, c actuate.ProcessConfig) *actuate.Process {
	c.Budget, c.Starts = uint32(p.scaling.config.Budget), p.scaling.config.Starts
	c.Registry, c.Logger = process.Registry, process.Log
	c.Drain = func(ctx context.Context, id fleet.WorkerID, epoch fleet.Epoch) error {
		res, err := p.store.Propose(ctx, planner.DrainWorker{ID: id, Epoch: epoch})
		if err != nil {
			return err
		}
		return res.Err()
	}
	out := actuate.NewProcess(c)
	p.scaling.process.Store(out)
	return out
}

// follow has an actuator follow the plan.
func (p *Planner) follow(process Process, a actuate.Actuator) {
	p.background(func(ctx context.Context) { actuate.Run(ctx, process.Clock, followed{p.store}, a) })
}

// startProcesses runs workers of the settings' worker section as children, where the
// settings want that.
func (p *Planner) startProcesses(process Process, c *config.Config) {
	if p.scaling.scaler == nil || c.Scale.Actuator != "process" || len(process.Worker) == 0 {
		return
	}
	command := workerCommand{process: process, config: c, planner: p.addr}
	a := p.actuate(process, actuate.ProcessConfig{
		Serves: func(key scale.Key) bool { return key.Model == c.Worker.ServedName },
		Start: func(key scale.Key, id fleet.WorkerID) actuate.Child {
			return launch.Start(command.of(key, id), launch.Options{
				FinalCodes: []int{usageExit}, Clock: process.Clock, Log: process.Log, Around: timerslack.AsBefore,
			})
		},
		Prefix: c.Planner.ID + "-", DrainTime: c.Worker.DrainTimeout + stopTime,
	})
	p.follow(process, a)
}

// workerCommand is how workers of the worker section are run.
type workerCommand struct {
	process Process
	config  *config.Config
	planner string // where they register
}

// of is the command of one worker. Several run on this machine, so ports are any.
func (w *workerCommand) of(key scale.Key, id fleet.WorkerID) launch.Command {
	c := w.config
	args := append(slices.Clone(w.process.Worker[1:]),
		"--leash", "--id", string(id), "--role", key.Role.String(), "--planner", w.planner,
		"--listen", anyPort(c.Worker.Listen), "--transfer", anyPort(c.Worker.Transfer), "--transfer-advertise", "",
		"--log-level", c.Log.Level, "--log-format", c.Log.Format,
		"--tls-cert", c.TLS.Cert, "--tls-key", c.TLS.Key, "--tls-ca", c.TLS.CA, "--tls-plaintext="+strconv.FormatBool(c.TLS.Plaintext))
	return launch.Command{Name: string(id), Path: w.process.Worker[0], Args: args, Output: w.process.Output}
}

// anyPort is the address with a port that the system chooses.
func anyPort(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return net.JoinHostPort(host, "0")
}

// stopTime is how much longer than its own drain a worker may take to end.
const stopTime = 5 * time.Second

// stop ends what asks policies, which end after it, and the workers that were started
// here.
func (s *scaling) stop(ctx context.Context) error {
	if s.end != nil {
		s.end()
	}
	if own := s.process.Load(); own != nil {
		return own.Close(ctx)
	}
	return nil
}
