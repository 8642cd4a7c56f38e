package dispatch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/prompt"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/core/wire/edge"
	"github.com/yardmaster/yardmaster/core/wire/openai"
)

// Dispatcher serves requests. It is safe for concurrent use.
type Dispatcher struct {
	cfg      Config
	deps     Deps
	tenants  *admit.Tenants
	gate     *admit.Gate
	lobby    *admit.Lobby
	nameless *admit.Line // of requests whose model is not known yet
	budget   *admit.Budget
	table    *load.Table
	inFlight measure.Gauge
	decision measure.Histogram
	// strangers counts requests for models that nobody serves.
	strangers *measure.Counters
	known     atomic.Pointer[known]
	learning  sync.Mutex
	buffers   sync.Pool // of *[]byte, for streams

	prompts *prompt.Reader
	tracker *prefix.Tracker
	scratch sync.Pool // of *prompt.Scratch
	chains  sync.Pool // of *[]prefix.Hash
	memory  memory

	// deciding makes a decision and its reservation one step: the next decision
	// sees this one's work.
	deciding sync.Mutex
	router   *route.Router
	rng      *rand.Rand
}

// New makes a dispatcher, or reports every fault of the configuration.
func New(c Config, deps Deps) (*Dispatcher, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("dispatch: %w", err)
	}
	c = c.withDefaults()
	if c.Seed == 0 {
		c.Seed = rand.Uint64() //nolint:gosec // transfer ids only have to differ; ties need no secrecy
	}
	c.Route.Seed = c.Seed
	if deps.Prompts == nil {
		deps.Prompts = prompt.New(prompt.Options{Clock: deps.Clock, Registry: deps.Registry})
	}
	if deps.Reach == nil {
		deps.Reach = func(context.Context, *fleet.Worker) error { return nil }
	}
	d := &Dispatcher{
		cfg: c, deps: deps,
		lobby:     admit.NewLobby(deps.Clock, c.MaxWaiting),
		budget:    admit.NewBudget(max(c.RetryShare, 0)),
		gate:      admit.New(c.Admit),
		tenants:   admit.NewTenants(),
		table:     load.NewTable(deps.Registry),
		inFlight:  deps.Registry.Gauge(measure.RequestsInFlight),
		decision:  deps.Registry.Histogram(measure.DecisionSeconds),
		strangers: deps.Registry.Counters(measure.Requests, unknownModel),
		router:    route.New(c.Route),
		rng:       rand.New(rand.NewPCG(c.Seed, ^c.Seed)), //nolint:gosec // as above
		prompts:   deps.Prompts,
		tracker:   prefix.NewTracker(prefix.TrackerOptions{Registry: deps.Registry}),
		scratch:   sync.Pool{New: func() any { return new(prompt.Scratch) }},
		chains:    sync.Pool{New: func() any { return new([]prefix.Hash) }},
		buffers:   sync.Pool{New: func() any { b := make([]byte, streamBuffer); return &b }},
	}
	d.table.Patience = c.Patience
	if c.RetryShare < 0 {
		d.budget = new(admit.Budget) // without even a burst
	}
	d.nameless = d.lobby.NewLine(nil)
	return d, nil
}

// Load is this gateway's in-flight work, for reports.
func (d *Dispatcher) Load() *load.Table { return d.table }

// Request is one call of the API.
type Request struct {
	*edge.Request
	ID string // unique; engines see it
	// Trace is the client's traceparent, passed on; empty when it sent none.
	Trace string
	// Whole says that nothing is generated (embeddings): one worker computes all.
	Whole bool
	Path  string // the API route engines are called at, e.g. /v1/chat/completions
	// Session is a hash of what the client calls its conversation by; 0 when it says
	// nothing.
	Session uint64
	Tenant  string // whose request it is, by configuration; empty without tenants
	Class   admit.Class
	Wishes  Wishes
}

// Life is one accepted request. Its methods are called by one goroutine.
type Life struct {
	d        *Dispatcher
	route    string
	accepted time.Time
	pass     *admit.Pass
	settled  bool

	// Set by Serve.
	req      *Request
	sink     Sink
	model    *model
	dog      *watchdog
	tried    []load.Key
	identity identity
	// remembered is the place of the explanation in Dispatcher.memory.
	remembered uint64
	standing   standing
	placement  *Placement
	refused    *Placement // by admission; nil where it was not
	placements int        // so far
	basis      basis
	path       route.Path
	refusal    *refusal
	begun      bool
	status     int
	watch      edge.Watch
	firstAt    time.Time // of the first token
	lastAt     time.Time // of the last token
	reserved   *load.Reservation
	server     *load.Slot // of the present attempt
	legs       *legs      // of the present attempt, when disaggregated
	vigil      load.Vigil // of the present attempt's stream
	output     bool       // the present attempt has given output
	together   string     // why the prompt is not to be computed elsewhere; empty when it may be
	offers     int        // workers that this request was offered to
	trail      trail
	lost       lost
	dropped    bool // the last event was kept from the client
	// What was waited for a worker since the start, or since one was lost: while
	// there was none, and while all were busy.
	held, queued time.Duration
}

// Accept begins a request that came in by the named route (a metrics label).
// Over a bound the error is of kind Saturated, and the life has ended. Otherwise
// the caller closes it. Until Serve the request counts against no bound but that
// of Hold, since clients decide how long reading it takes.
func (d *Dispatcher) Accept(routeName string) (*Life, error) {
	l := &Life{d: d, route: routeName, accepted: d.deps.Clock.Now()}
	d.inFlight.Add(1)
	pass, err := d.gate.Enter()
	if err != nil {
		l.Refuse(err)
		l.Close()
		return nil, err
	}
	l.pass = pass
	return l, nil
}

// Hold counts n bytes of body before the memory for them is taken. An error is
// of kind Saturated.
func (l *Life) Hold(n unit.Bytes) error { return l.pass.Hold(n) }

// Refuse ends the request before it was served, e.g. for a body that cannot be
// read. It counts under the model "unknown".
func (l *Life) Refuse(err error) Outcome { return l.settle(err) }

// Close gives back what the life holds. Closing again does nothing.
func (l *Life) Close() {
	if l.d == nil {
		return
	}
	if !l.settled {
		l.settle(errors.New("dispatch: a request ended without an outcome"))
	}
	if l.pass != nil {
		l.pass.Close()
	}
	l.forget()
	l.d.inFlight.Add(-1)
	l.d = nil
}

// Serve computes the request and delivers the answer to sink. It returns when
// nothing of the request is left running anywhere. Cancelling ctx, with a cause
// of type *errs.Error to tell the client why, ends it.
func (l *Life) Serve(ctx context.Context, req *Request, sink Sink) Outcome {
	l.req, l.sink = req, sink
	if err := l.pass.Admit(); err != nil {
		return l.settle(err)
	}
	return l.settle(l.serve(ctx))
}

func (l *Life) serve(ctx context.Context) error {
	d := l.d
	ctx, l.dog = watch(ctx, d.deps.Clock, d.cfg.Deadlines.Total)
	defer l.dog.stop()
	if err := l.meet(ctx); err != nil {
		return err
	}
	l.model.arrivals.Inc()
	if !d.cfg.KeepUsage {
		l.req.CountUsage()
	}
	l.together = together(l.req)
	if err := l.admit(ctx); err != nil {
		return err
	}
	d.budget.Request()
	for {
		p, err := l.seat(ctx)
		if err != nil {
			return l.unplaced(ctx, err)
		}
		l.offers++
		next, err := l.attempt(ctx, p)
		switch next {
		case over:
			return err
		case anew, onward:
			l.offers, l.held, l.queued = 0, 0, 0
			continue
		case elsewhere:
		}
		if l.offers >= d.cfg.Attempts {
			return l.exhausted(err)
		}
		if !d.budget.Retry() {
			d.deps.Registry.Counter(measure.RetriesRefused).Inc()
			return l.exhausted(err)
		}
	}
}

// settle fixes the outcome and counts it, once.
func (l *Life) settle(err error) Outcome {
	now := l.d.deps.Clock.Now()
	o := Outcome{
		Name: "ok", Status: l.status, Begun: l.begun, Placement: l.placement,
		Usage: l.watch.Usage, Duration: now.Sub(l.accepted),
	}
	if !l.firstAt.IsZero() {
		o.TTFT = l.firstAt.Sub(l.accepted)
	}
	if o.Placement == nil {
		o.Placement = l.refused
	}
	switch {
	case err != nil:
		o.Err = errs.As(err)
		if l.placement != nil && l.placement.Failovers > 0 && !o.Err.NoRetry {
			e := *o.Err
			e.NoRetry = true // others were tried already
			o.Err = &e
		}
		o.Name = nameOf(o.Err.Kind)
		if !l.begun {
			o.Status = openai.Status(o.Err.Kind)
		}
	case l.status >= 400: // the engine's own answer
		o.Name = nameOf(edge.KindOf(l.status))
	}
	if l.settled {
		return o
	}
	l.settled = true
	l.d.memory.ended(l.remembered, &o)
	requests := l.d.strangers
	if l.model != nil {
		requests = l.model.requests
		l.observe()
	}
	requests.Of(l.route, o.Name).Inc()
	l.account(&o)
	l.depart(&o)
	if l.d.deps.Observe != nil && l.placement != nil {
		l.d.deps.Observe(l.observation(&o))
	}
	return o
}

// observe counts what the engine reported and how fast the tokens came.
func (l *Life) observe() {
	u, m := l.watch.Usage, l.model
	l.served(u)
	if u.Known {
		m.prompt.Add(float64(u.Prompt))
		m.cached.Add(float64(min(u.Cached, u.Prompt)))
		m.output.Add(float64(u.Output))
		m.outputs.learn(u.Output)
		m.ratio.Learn(l.identity.size(l.req.Prompt), u.Prompt)
	}
	if gap, ok := l.gap(); ok {
		m.tpot.Observe(gap)
	}
}

func noCapacity(client string, cause error) *errs.Error {
	return &errs.Error{Kind: errs.NoCapacity, Client: client, Code: "no_capacity", RetryAfter: time.Second, Cause: cause}
}
