package assemble

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/gpu/actuate"
	"github.com/yardmaster/yardmaster/gpu/launch"
)

// Dev is everything on one machine: a planner with its gateway in this process,
// a prefill and a decode worker as children.
type Dev struct {
	Planner  *Planner
	Gateway  *Gateway
	children []*launch.Child  // that were started first; nobody's once they are adopted
	scaled   *actuate.Process // nil where the pools stay as they are
}

// DevOptions say how the children are run.
type DevOptions struct {
	// Executable and Config are this binary and its configuration file, which
	// the children read too; Config may be empty.
	Executable, Config string
	// Engine and Model are settled: no longer auto, no longer to be downloaded.
	Engine, Model string
	// Output gets the children's logs, a line a Write. It must be safe for
	// concurrent use.
	Output io.Writer
	// Workers are the children. Empty means one prefill and one decode worker.
	Workers []DevWorker
	// ScaledArgs are further flags of workers that are started for the load.
	ScaledArgs []string
	// Supervision says how children are started again. Its FinalCodes, Clock and
	// Log are set here.
	Supervision launch.Options
}

// DevWorker is one child.
type DevWorker struct {
	ID, Role string
	Args     []string // further flags of the worker command
}

// usageExit is the exit code of a child that cannot start as it was told:
// another try would end likewise.
const usageExit = 2

// StartDev starts everything. It returns once the workers are registered and
// the API answers.
func StartDev(ctx context.Context, p Process, c *config.Config, o DevOptions) (*Dev, error) {
	if len(o.Workers) == 0 {
		o.Workers = []DevWorker{{ID: "prefill-0", Role: "prefill"}, {ID: "decode-0", Role: "decode"}}
	}
	own, gateway := *c, c.Gateway
	gateway.Disaggregate = c.Dev.Disaggregate
	gateway.Tokenizers = append(slices.Clone(gateway.Tokenizers), devTokenizer(c.Worker.ServedName, o)...)
	own.TLS = config.TLS{}
	own.Planner.DataDir, own.Planner.Listen = c.Dev.DataDir, "127.0.0.1:0"
	own.Scale = devScale(c)
	if len(own.Policy.TrustedKeys) == 0 {
		own.Policy.AllowUnsigned = true // one machine, one user
	}
	d := &Dev{}
	var err error
	if d.Planner, err = StartPlanner(ctx, p, &own); err != nil {
		return nil, err
	}
	if d.Gateway, err = StartGateway(ctx, p, gateway, d.Planner); err == nil {
		supervision := o.Supervision
		supervision.FinalCodes, supervision.Clock, supervision.Log = []int{usageExit}, p.Clock, p.Log
		for _, w := range o.Workers {
			d.children = append(d.children, launch.Start(d.command(c, o, w), supervision))
		}
		if err = d.ready(ctx, p, len(o.Workers)); err == nil && own.Scale.On() {
			err = d.scale(p, c, o, supervision)
		}
	}
	if err != nil {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		return nil, errors.Join(err, d.Close(stop))
	}
	return d, nil
}

func (d *Dev) command(c *config.Config, o DevOptions, w DevWorker) launch.Command {
	args := []string{
		"worker", "--leash", "--id", w.ID, "--role", w.Role, "--engine", o.Engine,
		"--planner", d.Planner.Addr(), "--listen", "127.0.0.1:0", "--transfer", "127.0.0.1:0",
		"--threads", strconv.Itoa(c.Dev.Threads), "--log-level", c.Log.Level, "--log-format", c.Log.Format,
	}
	if o.Engine == "cpu" {
		args = append(args, "--model", o.Model)
	}
	if o.Config != "" {
		args = append(args, "--config", o.Config)
	}
	return launch.Command{Name: w.ID, Path: o.Executable, Args: append(args, w.Args...), Output: o.Output}
}

// readyWait is how long workers may take to load their model and register.
const readyWait = 2 * time.Minute

// readyPoll is how often the fleet is looked at meanwhile.
const readyPoll = 5 * time.Millisecond

// ready waits until n workers are registered.
func (d *Dev) ready(ctx context.Context, p Process, n int) error {
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	timer := p.Clock.NewTimer(readyPoll)
	defer timer.Stop()
	for {
		if len(d.Planner.View().Workers) >= n {
			return nil
		}
		for _, child := range d.children {
			if err := child.Err(); err != nil {
				return fmt.Errorf("%w: what it said stands above", err)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the workers did not register: %w", ctx.Err())
		case <-timer.C():
			timer.Reset(readyPoll)
		}
	}
}

// Model is the name that clients use.
func (d *Dev) Model() string {
	models := d.Planner.View().Models()
	if len(models) == 0 {
		return ""
	}
	return models[0]
}

// Children are the workers' processes.
func (d *Dev) Children() []*launch.Child {
	if d.scaled == nil {
		return slices.Clone(d.children)
	}
	var out []*launch.Child
	for _, child := range d.scaled.Children() {
		if process, ok := child.(*launch.Child); ok {
			out = append(out, process)
		}
	}
	return out
}

// Worker is the registered worker of that id.
func (d *Dev) Worker(id fleet.WorkerID) (fleet.Worker, bool) {
	view := d.Planner.View()
	i := view.Find(id)
	if i < 0 {
		return fleet.Worker{}, false
	}
	return view.Workers[i], true
}

// Close ends everything: the API first, which drains, then the workers, then
// the planner. What still runs when ctx ends is killed.
func (d *Dev) Close(ctx context.Context) error {
	var faults []error
	if d.Gateway != nil {
		faults = append(faults, d.Gateway.Close(ctx))
	}
	if d.scaled != nil {
		faults = append(faults, d.scaled.Close(ctx))
	}
	stopped := make(chan error, len(d.children))
	for _, child := range d.children {
		go func() { stopped <- child.Stop(ctx) }()
	}
	for range d.children {
		faults = append(faults, <-stopped)
	}
	return errors.Join(append(faults, d.Planner.Close(ctx))...)
}

// devBudget is the most workers of dev where scale.budget says nothing: a laptop has
// bounds that no setting knows.
const devBudget = 8

// devScale is how dev sizes its pools.
func devScale(c *config.Config) config.Scale {
	s := c.Scale
	if !c.Dev.Scale {
		s.Policy = config.ScaleOff
		return s
	}
	if !s.On() {
		s.Policy = config.ScalePolicies()[1]
	}
	if s.Budget == 0 {
		s.Budget = devBudget
	}
	return s
}

// scale puts the workers under the plan: pools grow and shrink from now on.
func (d *Dev) scale(p Process, c *config.Config, o DevOptions, supervision launch.Options) error {
	model := d.Model()
	a := d.Planner.actuate(p, actuate.ProcessConfig{
		Serves: func(key scale.Key) bool { return key.Model == model },
		Start: func(key scale.Key, id fleet.WorkerID) actuate.Child {
			return launch.Start(d.command(c, o, DevWorker{ID: string(id), Role: key.Role.String(), Args: o.ScaledArgs}), supervision)
		},
		DrainTime: c.Worker.DrainTimeout + stopTime,
	})
	for i, w := range o.Workers {
		role, err := fleet.ParseRole(w.Role)
		if err != nil {
			return err
		}
		a.Adopt(scale.Key{Model: model, Role: role}, fleet.WorkerID(w.ID), d.children[i])
	}
	d.children, d.scaled = nil, a
	d.Planner.follow(p, a)
	return nil
}
