package rollout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/bench/cluster"
	"github.com/yardmaster/yardmaster/cmd/internal/bench/rig"
)

// The parts of the measurement.
const (
	PartSwaps   = "swaps"
	PartReloads = "reloads"
	PartPush    = "push"
)

// Parts are all parts, in the order in which they are measured.
func Parts() []string { return []string{PartPush, PartSwaps, PartReloads} }

// Options say what is measured. Zero fields mean the defaults.
type Options struct {
	Program string   // this program
	Dir     string   // where the nodes keep their files; default: the system's for temporary files
	Parts   []string // of [Parts]; default all

	Gateways int           // 2
	Workers  int           // 3
	Rate     int           // decisions a second, of all gateways together; 2,000
	Clients  int           // that send them, of each gateway; 32
	Swaps    int           // times that a policy is promoted and rolled back; 100
	Pause    time.Duration // after each change; 50 ms
	Reloads  int           // 1,000
	Pushes   int           // uploads of the small module; 5
	GoPushes int           // and of the one built by Go; 2
	Rest     time.Duration // between samples of memory; 250 ms

	// Go is a router built by Go; without one its push is not measured.
	Go []byte
}

// ErrPart means that a part that was asked for does not exist.
var ErrPart = errors.New("no part of the measurement")

func (o Options) withDefaults() (Options, error) {
	if len(o.Parts) == 0 {
		o.Parts = Parts()
	}
	for _, part := range o.Parts {
		if !slices.Contains(Parts(), part) {
			return o, fmt.Errorf("%w: %q; there are %s", ErrPart, part, strings.Join(Parts(), ", "))
		}
	}
	fill(&o.Gateways, 2)
	fill(&o.Workers, 3)
	fill(&o.Rate, 2000)
	fill(&o.Clients, 32)
	fill(&o.Swaps, 100)
	fill(&o.Pause, 50*time.Millisecond)
	fill(&o.Reloads, 1000)
	fill(&o.Pushes, 5)
	fill(&o.GoPushes, 2)
	fill(&o.Rest, 250*time.Millisecond)
	return o, nil
}

func fill[T int | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}

// Result is what was measured. Parts that were not asked for are nil.
type Result struct {
	Machine cluster.Machine `json:"machine"`
	Bars    []cluster.Bar   `json:"bars"`
	Push    *Push           `json:"push,omitempty"`
	Swaps   *Swaps          `json:"swaps,omitempty"`
	Reloads *Reloads        `json:"reloads,omitempty"`
}

// Missed are the bars that do not hold.
func (r *Result) Missed() []cluster.Bar {
	return slices.DeleteFunc(slices.Clone(r.Bars), func(b cluster.Bar) bool { return b.Holds })
}

// bench is one measurement.
type bench struct {
	Options
	say    func(string)
	result *Result
	fleet  *fleet
	names  int // of policies so far
}

// most adds a bar: value is to be bound at most.
func (b *bench) most(what string, value, bound float64) {
	b.result.Bars = append(b.result.Bars, cluster.Bar{What: what, Value: value, Bound: bound, Holds: value <= bound})
}

// Run measures. say is told what is under way.
func Run(ctx context.Context, o Options, say func(string)) (r Result, err error) {
	if o, err = o.withDefaults(); err != nil {
		return r, err
	}
	r.Machine = cluster.Machine{Cores: runtime.NumCPU(), LoadBefore: cluster.SystemLoad()}
	b := &bench{Options: o, say: say, result: &r}
	err = b.with(ctx, func(ctx context.Context) error {
		for _, part := range []struct {
			name string
			run  func(context.Context) error
		}{{PartPush, b.push}, {PartSwaps, b.swaps}, {PartReloads, b.reloads}} {
			if !slices.Contains(o.Parts, part.name) {
				continue
			}
			if err := part.run(ctx); err != nil {
				return fmt.Errorf("%s: %w", part.name, err)
			}
		}
		return nil
	})
	r.Machine.LoadAfter = cluster.SystemLoad()
	return r, err
}

// model is what the workers serve.
const model = "bench"

// script is the script of an engine that answers at once. The worker's name is an
// adapter of the model.
func script(worker string) string {
	return fmt.Sprintf("engine:\n  model: %s\n  adapters: [%s]\n  max_running: 1024\n  kv_blocks: 100000\n", model, worker)
}

// with runs a fresh cluster while use does.
func (b *bench) with(ctx context.Context, use func(context.Context) error) (err error) {
	dir, err := os.MkdirTemp(b.Dir, "yardmaster-rollout-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c, err := rig.New(rig.Config{
		Program: b.Program, Dir: dir, Gateways: b.Gateways, Workers: b.Workers, Script: script, Admin: true,
		Gateway: map[string]string{"GATEWAY_TOKENIZER": model + "=scripted", "GATEWAY_DISAGGREGATE": "never"},
	})
	if err != nil {
		return err
	}
	for _, n := range c.Planners.Nodes {
		n.Set("POLICY_ALLOW_UNSIGNED", "true")
	}
	defer c.Stop()
	b.say(fmt.Sprintf("starting %d planners, %d gateways, %d workers", rig.Voters, b.Gateways, b.Workers))
	if err := c.Start(ctx); err != nil {
		return err
	}
	b.fleet = newFleet(c)
	return use(ctx)
}
