package dispatch

import (
	"context"
	"errors"
	"time"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/prompt"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/unit"
)

// Deadlines bound each stage of a request. Connecting is bounded by the
// adapters. Zero fields take their defaults.
type Deadlines struct {
	// Header is from sending a streamed request to the engine's status; default
	// FirstToken, since many engines send no status before they have a token. (The
	// status of a whole answer comes with the answer: Total bounds it.)
	Header time.Duration
	// FirstToken is from the status to the first event with data; default 5 min,
	// which leaves room for a long prompt in a queue.
	FirstToken time.Duration
	// Idle is between two events with data; default 2 min. Comments are no sign
	// of progress.
	Idle time.Duration
	// Total is the whole request; default 10 min.
	Total time.Duration
	// Queue is the longest wait for a worker while all are busy; default 30 s,
	// negative never waits.
	Queue time.Duration
	// Hold is the longest wait while there is no worker at all, e.g. because the
	// first is starting; default 5 s, negative never waits.
	Hold time.Duration
	// Tail is from the end marker to the end of the engine's response; default 1 s.
	Tail time.Duration
}

// Config sets up a dispatcher. Zero fields take their defaults.
type Config struct {
	Route     route.Config
	Admit     admit.Config
	Deadlines Deadlines
	// Eject is how long an unreachable worker is left out; default 200 ms,
	// doubling to 5 s. Registering again ends it at once.
	Eject load.Backoff
	// Attempts is the most workers a request is offered to; default 3.
	Attempts int
	// MaxWaiting is the most requests that wait for one model; default 1024.
	MaxWaiting int
	// RetryShare is the share of requests that may be offered to another worker
	// than the first, beyond a burst of 100; default 0.2, negative allows none.
	RetryShare float64
	// Migrations is how often a stream whose worker is lost goes on elsewhere;
	// default 3, negative never.
	Migrations int
	// Patience is how long a worker with streams may give no token, besides the
	// time its prompts take, before others are preferred; default 5 s.
	Patience time.Duration
	// Absent is what clients are told while there is no worker at all; default "no
	// worker is registered".
	Absent string
	// Models are known although no worker serves them yet. When some are named,
	// others are unknown until a worker serves them: nobody waits for those.
	Models []string
	// MaxEvent is the longest event of a stream; default 4 MiB.
	MaxEvent unit.Bytes
	// MaxAnswer is the longest whole (not streamed) answer; default 64 MiB.
	MaxAnswer unit.Bytes
	// KeepUsage leaves stream_options alone. By default streams are made to
	// report usage, for metrics; clients that did not ask do not see it.
	KeepUsage bool
	// Degraded is the most tokens that a request gets which admission wants to be
	// served with less; default 256.
	Degraded unit.Tokens
	// Seed makes ties and transfer ids reproducible; 0 draws one.
	Seed uint64
}

// Validate reports every fault at once.
func (c Config) Validate() error {
	faults := []error{c.Route.Validate()}
	d := c.Deadlines
	for name, v := range map[string]time.Duration{
		"header deadline": d.Header, "first token deadline": d.FirstToken, "idle deadline": d.Idle,
		"total deadline": d.Total, "tail deadline": d.Tail, "patience": c.Patience, "ejection": c.Eject.First, "longest ejection": c.Eject.Longest,
	} {
		if v < 0 {
			faults = append(faults, errors.New(name+" is negative"))
		}
	}
	if c.MaxWaiting < 0 || !(c.RetryShare <= 1) {
		faults = append(faults, errors.New("longest queue must not be negative, retry share at most 1"))
	}
	if len(c.Models) > maxModels {
		faults = append(faults, errors.New("too many models are declared"))
	}
	if c.Attempts < 0 || c.MaxEvent < 0 || c.MaxAnswer < 0 {
		faults = append(faults, errors.New("attempts, longest event and longest answer must not be negative"))
	}
	return errors.Join(faults...)
}

func (c Config) withDefaults() Config {
	duration := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	duration(&c.Deadlines.FirstToken, 5*time.Minute)
	duration(&c.Deadlines.Header, c.Deadlines.FirstToken)
	duration(&c.Deadlines.Idle, 2*time.Minute)
	duration(&c.Deadlines.Total, 10*time.Minute)
	duration(&c.Deadlines.Queue, 30*time.Second)
	duration(&c.Deadlines.Hold, 5*time.Second)
	duration(&c.Deadlines.Tail, time.Second)
	duration(&c.Patience, load.DefaultPatience)
	if c.RetryShare == 0 {
		c.RetryShare = .2
	}
	if c.Migrations == 0 {
		c.Migrations = 3
	}
	duration(&c.Eject.First, 200*time.Millisecond)
	duration(&c.Eject.Longest, max(5*time.Second, c.Eject.First))
	if c.Degraded <= 0 {
		c.Degraded = 256
	}
	if c.Attempts == 0 {
		c.Attempts = 3
	}
	if c.Absent == "" {
		c.Absent = "no worker is registered"
	}
	if c.MaxEvent == 0 {
		c.MaxEvent = 4 << 20
	}
	if c.MaxAnswer == 0 {
		c.MaxAnswer = 64 << 20
	}
	return c
}

// Deps are what a dispatcher needs of its surroundings.
type Deps struct {
	// View is the fleet as it is now; never nil. It is called per attempt.
	View func() *fleet.View
	// Samples is what workers last said of themselves; may be nil or return nil.
	Samples func() *fleet.Samples
	// Prompts gives requests their identity; nil knows them by their bytes.
	Prompts *prompt.Reader
	// Events is the index fed by the workers' KV events; may be nil or return nil.
	// What workers that it does not know hold is guessed.
	Events func() *prefix.Table
	// Reach tells whether a worker accepts connections, in little time; nil takes
	// all for reachable.
	Reach func(context.Context, *fleet.Worker) error
	// Adapter finds the adapter for an engine by Worker.Engine; nil for an
	// unknown one.
	Adapter func(engine string) engine.Adapter
	// Admission decides whether requests are served, and how urgent they are; nil
	// serves all, in the order of their classes.
	Admission admit.Policy
	// Quota spends tenants' quotas; nil knows none.
	Quota *admit.Spender
	// Observe is told what became of each request that was placed; nil for nobody. It
	// is called on the request's way and must not wait.
	Observe  func(Observation)
	Registry *measure.Registry
	Clock    clock.Clock
}
