package route

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/unit"
)

// ErrUnknownModel means that no registered worker serves the model.
var ErrUnknownModel = errors.New("no worker serves the model")

// ErrNoWorker means that workers serve the model, but none can take a request
// now: all are draining, tried already, or only compute prompts.
var ErrNoWorker = errors.New("no worker can take the request")

// Query is what a decision is about.
type Query struct {
	Model  string
	Prompt unit.Tokens // tokens to compute, as far as known
	Turn   uint64      // a number that rises with each decision for the model
	Now    time.Time
	// Tried are incarnations that did not take this request. They are not asked
	// again.
	Tried []load.Key
}

// Path is how a request is computed.
type Path uint8

// The paths.
const (
	Aggregated    Path = iota // prompt and output on one worker
	Disaggregated             // prompt on one, output on another
)

// String is the path's name in metrics and headers.
func (p Path) String() string { return [...]string{"aggregated", "disaggregated"}[p] }

// The reasons for a path.
const (
	ReasonOff             = "off"               // configured so
	ReasonShortPrompt     = "short_prompt"      // fewer tokens than MinPrompt
	ReasonNoTransfer      = "no_transfer"       // the serving worker exchanges KV with nobody
	ReasonNoPrefillWorker = "no_prefill_worker" // no compatible, reachable one
	ReasonPrefillBusy     = "prefill_busy"      // rates unknown, and more queues there
	ReasonPredictedSlower = "predicted_slower"  // rates known, moving does not pay
	ReasonPredictedFaster = "predicted_faster"  // rates known, moving pays
	ReasonLongPrompt      = "long_prompt"       // rates unknown, prompt at least MinPrompt
	ReasonForced          = "forced"            // mode Always
)

// None stands for no worker in a Decision.
const None = -1

// Decision is the outcome, in indices of View.Workers.
type Decision struct {
	View   *fleet.View
	Slots  []*load.Slot // by worker index
	Path   Path
	Reason string
	Policy string
	// Serve generates the output (and computes the prompt when aggregated).
	Serve int
	// Prefill computes the prompt of a disaggregated request, else None.
	Prefill int
	// NextServe and NextPrefill are the runners-up, or None.
	NextServe, NextPrefill int
	// Ejected says that Serve was taken although it is ejected, for want of any
	// other.
	Ejected bool
}

// Server is the worker that generates.
func (d *Decision) Server() *fleet.Worker { return &d.View.Workers[d.Serve] }

// Prefiller is the worker that computes the prompt, nil when aggregated.
func (d *Decision) Prefiller() *fleet.Worker {
	if d.Prefill == None {
		return nil
	}
	return &d.View.Workers[d.Prefill]
}

// Router decides. It is not safe for concurrent use, on purpose: whoever calls
// it reserves before the next call, so that each decision sees the work of the
// ones before it.
type Router struct {
	cfg     Config
	rng     *rand.Rand
	columns Columns
	cost    []float64
}

// New makes a router. The configuration must be valid.
func New(c Config) *Router {
	c = c.withDefaults()
	return &Router{cfg: c, rng: rand.New(rand.NewPCG(c.Seed, c.Seed^0x9e3779b97f4a7c15))} //nolint:gosec // ties need no secrecy
}

// Decide places q among the workers of lined's view. samples may be nil.
// Errors are ErrUnknownModel or ErrNoWorker.
func (r *Router) Decide(q *Query, lined *load.Columns, samples *fleet.Samples) (Decision, error) {
	d := Decision{
		View: lined.View, Slots: lined.Slots, Policy: r.cfg.Policy.Name(),
		Prefill: None, NextPrefill: None,
	}
	serving := lined.View.Serving(q.Model)
	if len(serving) == 0 {
		return d, ErrUnknownModel
	}
	takes := func(w *fleet.Worker) bool { return w.Role&fleet.RoleDecode != 0 }
	d.Serve, d.NextServe = r.choose(q, lined, serving, takes, false)
	if d.Serve == None {
		// An ejection is a guess about the next second. It gives way when the
		// only other answer is no.
		d.Serve, d.NextServe = r.choose(q, lined, serving, takes, true)
		d.Ejected = true
	}
	if d.Serve == None {
		return d, ErrNoWorker
	}
	r.choosePath(q, lined, samples, serving, &d)
	return d, nil
}

// choose vetoes, scores and picks among the workers in serving that takes
// accepts.
func (r *Router) choose(q *Query, lined *load.Columns, serving []int32, takes func(*fleet.Worker) bool, ejectedToo bool) (best, next int) {
	c := &r.columns
	c.reset()
	for _, i := range serving {
		w, slot := &lined.View.Workers[i], lined.Slots[i]
		if w.Draining || !takes(w) || slices.Contains(q.Tried, slot.Key) || !ejectedToo && slot.Ejected(q.Now) {
			continue
		}
		c.Worker = append(c.Worker, i)
		c.InFlight = append(c.InFlight, float64(slot.InFlight()))
		c.Queued = append(c.Queued, float64(slot.QueuedPrompt()))
	}
	n := len(c.Worker)
	if n == 0 {
		return None, None
	}
	r.cost = slices.Grow(r.cost[:0], n)[:n]
	r.cfg.Policy.Score(q, c, r.cost)
	best, next = r.pick(r.cost)
	return c.place(best), c.place(next)
}

func (c *Columns) place(i int) int {
	if i == None {
		return None
	}
	return int(c.Worker[i])
}

// pick returns the places of the lowest and second lowest cost. Among equals
// chance decides; NaN takes no part.
func (r *Router) pick(cost []float64) (best, next int) {
	best, next = None, None
	ties := 0
	for i, v := range cost {
		switch {
		case math.IsNaN(v):
		case best == None || v < cost[best]:
			best, next, ties = i, best, 1
		case v == cost[best]:
			ties++
			next = i
		case next == None || v < cost[next]:
			next = i
		}
	}
	if ties < 2 {
		return best, next
	}
	first := r.rng.IntN(ties)
	second := (first + 1 + r.rng.IntN(ties-1)) % ties // another one
	lowest := cost[best]
	return nth(cost, lowest, first), nth(cost, lowest, second)
}

// nth is the place of the n-th occurrence of v, which is there.
func nth(cost []float64, v float64, n int) int {
	for i, c := range cost {
		if c == v {
			if n == 0 {
				return i
			}
			n--
		}
	}
	return None
}
