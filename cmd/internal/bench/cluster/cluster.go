package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/bench/rig"
	"github.com/yardmaster/yardmaster/core/sim/trace"
)

// The parts of the measurement.
const (
	PartStreams = "streams"
	PartPrefix  = "prefix"
	PartRestart = "restart"
	PartHerding = "herding"
)

// Parts are all parts, in the order in which they are measured.
func Parts() []string { return []string{PartStreams, PartPrefix, PartRestart, PartHerding} }

// Options say what is measured. Zero fields mean the defaults.
type Options struct {
	Program string   // this program
	Dir     string   // where the nodes keep their files; default: the system's for temporary files
	Parts   []string // of [Parts]; default all

	Streams      int           // that run at once; 200
	StreamTokens int           // of a stream; 500
	TokenEvery   time.Duration // between two of them; 100 ms
	RequestsPerS int           // new short requests beside the streams; 100
	Rest         time.Duration // between two events; 5 s
	Outage       time.Duration // without any planner; 30 s
	// SameWorkers leaves out the worker that comes and dies after the outage,
	// whose end takes the grace that new leaders give.
	SameWorkers bool

	Trace    []trace.Request // what is replayed; default: a generated one like Mooncake's conversations
	Requests int             // of it; 1,000
	Speed    float64         // at which it is replayed; 11

	Groups  int // of prompts that share a beginning; 64
	PerPass int // requests of a pass over the groups; 256
	Bursts  int // of 64 requests, of each kind; 20
	// Settle is how long the news of what was served may take to all gateways
	// before the next burst or pass; 1 s.
	Settle time.Duration
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
	fill(&o.Streams, 200)
	fill(&o.StreamTokens, 500)
	fill(&o.TokenEvery, 100*time.Millisecond)
	fill(&o.RequestsPerS, 100)
	fill(&o.Rest, 5*time.Second)
	fill(&o.Outage, 30*time.Second)
	fill(&o.Requests, 1000)
	fill(&o.Speed, 11)
	fill(&o.Groups, 64)
	fill(&o.PerPass, 256)
	fill(&o.Bursts, 20)
	fill(&o.Settle, time.Second)
	if o.Trace == nil {
		o.Trace = trace.Generate(1, o.Requests)
	}
	o.Trace = o.Trace[:min(o.Requests, len(o.Trace))]
	return o, nil
}

func fill[T int | float64 | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}

// Result is what was measured. Parts that were not asked for are nil.
type Result struct {
	Machine Machine  `json:"machine"`
	Bars    []Bar    `json:"bars"`
	Streams *Streams `json:"streams,omitempty"`
	Prefix  *Prefix  `json:"prefix,omitempty"`
	Restart *Restart `json:"restart,omitempty"`
	Herding *Herding `json:"herding,omitempty"`
}

// Machine is what else bears on the figures. The load is the system's average of
// the last minute; -1 where it is not known.
type Machine struct {
	Cores      int     `json:"cores"`
	LoadBefore float64 `json:"load_before"`
	LoadAfter  float64 `json:"load_after"`
}

// Bar is a figure with what it must be.
type Bar struct {
	What  string  `json:"what"`
	Value float64 `json:"value"`
	// Least says that Bound is the least that Value may be, else it is the most.
	Least bool    `json:"least"`
	Bound float64 `json:"bound"`
	Holds bool    `json:"holds"`
}

func most(what string, value, bound float64) Bar {
	return Bar{What: what, Value: value, Bound: bound, Holds: value <= bound}
}

func least(what string, value, bound float64) Bar {
	return Bar{What: what, Value: value, Bound: bound, Least: true, Holds: value >= bound}
}

// Missed are the bars that do not hold.
func (r *Result) Missed() (out []Bar) {
	for _, b := range r.Bars {
		if !b.Holds {
			out = append(out, b)
		}
	}
	return out
}

// Run measures. say is told what is under way.
func Run(ctx context.Context, o Options, say func(string)) (r Result, err error) {
	if o, err = o.withDefaults(); err != nil {
		return r, err
	}
	r.Machine = Machine{Cores: runtime.NumCPU(), LoadBefore: SystemLoad()}
	b := &bench{Options: o, say: say, result: &r}
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{{PartStreams, b.streams}, {PartPrefix, b.prefix}, {PartRestart, b.restart}, {PartHerding, b.herding}} {
		if !slices.Contains(o.Parts, part.name) {
			continue
		}
		if err := part.run(ctx); err != nil {
			return r, fmt.Errorf("%s: %w", part.name, err)
		}
	}
	r.Machine.LoadAfter = SystemLoad()
	return r, nil
}

// bench is one measurement.
type bench struct {
	Options
	say    func(string)
	result *Result
}

func (b *bench) bar(bars ...Bar) { b.result.Bars = append(b.result.Bars, bars...) }

// shape is what a part needs of a cluster.
type shape struct {
	gateways, workers int
	engine            engine
}

// with runs a fresh cluster while use does.
func (b *bench) with(ctx context.Context, s shape, use func(context.Context, *fleet) error) (err error) {
	dir, err := os.MkdirTemp(b.Dir, "yardmaster-cluster-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c, err := rig.New(rig.Config{
		Program: b.Program, Dir: dir, Gateways: s.gateways, Workers: s.workers, Script: s.engine.script,
		// A worker that was sent KV calls it cached: here only what it computed may be.
		Gateway: map[string]string{"GATEWAY_TOKENIZER": model + "=scripted", "GATEWAY_DISAGGREGATE": "never"},
	})
	if err != nil {
		return err
	}
	defer c.Stop()
	if err := c.Start(ctx); err != nil {
		return err
	}
	f := &fleet{Cluster: c}
	for _, addr := range c.APIs {
		f.clients = append(f.clients, newClient(addr))
	}
	defer f.close()
	return use(ctx, f)
}

// fleet is a cluster and clients of its gateways, in their order.
type fleet struct {
	*rig.Cluster
	clients []*client
}

func (f *fleet) close() {
	for _, c := range f.clients {
		c.close()
	}
}
