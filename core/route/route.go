package route

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/prefix"
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
	Prompt unit.Tokens // the prompt's length, as far as known
	// Chain are the hashes of the prompt's whole blocks, of BlockTokens tokens
	// each. Without it nobody is known to hold any of the prompt.
	Chain       []prefix.Hash
	BlockTokens unit.Tokens
	Turn        uint64 // a number that rises with each decision for the model
	Draw        uint64 // a random number, for policies; Decide draws it
	Now         time.Time
	// Those below are for policies that come from elsewhere than this package; who
	// sets no Chooser need not set them. 0 is unknown, or none.
	Seed    uint64        // Draw, where it is to follow from the request
	Session uint64        // a hash of the conversation
	Tenant  uint64        // a hash of the tenant
	Class   uint32        // priority, 0 the least urgent
	Output  unit.Tokens   // the output expected
	First   time.Duration // wanted time to first token
	Between time.Duration // wanted time between tokens
	Waited  time.Duration // in this gateway so far
	Prefill bool          // the candidates are for the prompt alone; Decide sets it
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
	ReasonCached          = "cached"            // so few are left that the serving worker does not hold
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
	Mandate
	// Serve generates the output (and computes the prompt when aggregated).
	Serve int
	// Prefill computes the prompt of a disaggregated request, else None.
	Prefill int
	// NextServe and NextPrefill are the runners-up, or None.
	NextServe, NextPrefill int
	// ServeHit and PrefillHit are the leading tokens of the prompt that the two are
	// believed to hold.
	ServeHit, PrefillHit unit.Tokens
	// Fallback is why another policy than the one of that name decided in its place,
	// a machine word ([Columns.FellBack]); empty if it decided itself.
	Fallback string
	// PassedBy says that Serve was taken although it is to be passed by
	// ([load.Slot.PassedBy]), for want of any other.
	PassedBy bool
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
	fixed   *Choice // of the configuration
	choice  *Choice // of the present decision
	beside  Choice  // the configured policy with a chooser's shadow; choice may point to it
	ever    Needs   // of all policies that have decided
	query   Query   // the present one
	rng     *rand.Rand
	aligned aligned
	lookup  lookup
	overlay *prefix.Overlay
	phases  [2]phase
	// assigned is the work given since the workers' shares last faded.
	assigned float64
	window   window // kept for policies that ask for it
	lately   lately // likewise
}

// phase is the last choice of one kind: who was asked, and what they cost.
type phase struct {
	columns Columns
	cost    []float64
	tried   []float64 // the costs that a shadow found
	vetoed  []veto
	out     []int32 // places in the roster of those that are no candidates
	best    int     // the place of the candidate that was picked
	asked   bool    // in the last decision
	prompt  bool    // its workers compute the prompt alone
}

// veto is why a worker was no candidate.
type veto struct {
	worker int32
	why    string
}

const (
	serving = iota // phases[serving] generates
	prefilling
)

// The reasons for a veto, in explanations.
const (
	VetoDraining = "draining"
	VetoTried    = "tried"   // it did not take this request
	VetoFull     = "full"    // it has as many requests as it can use
	VetoEjected  = "ejected" // it could not be reached a moment ago
	VetoRefused  = "refused" // it was busy or draining a moment ago
	VetoDoubted  = "doubted" // its streams give no tokens
)

// New makes a router. The configuration must be valid.
func New(c Config) *Router {
	c = c.withDefaults()
	fixed := NewChoice(c.Policy, nil, Mandate{Policy: c.Policy.Name()})
	return &Router{
		cfg: c, fixed: fixed, choice: fixed, ever: fixed.needs, rng: rand.New(rand.NewPCG(c.Seed, c.Seed^0x9e3779b97f4a7c15)), //nolint:gosec // ties need no secrecy
		overlay: prefix.NewOverlay(overlayTTL, overlayBudget),
	}
}

const (
	// overlayTTL is how long a decision counts as a guess of what the chosen worker
	// holds: longer than a prompt usually queues and computes before its first
	// event.
	overlayTTL    = 10 * time.Second
	overlayBudget = 16 << 20
)

// MinPrompt is [Config.MinPrompt] as it applies.
func (r *Router) MinPrompt() unit.Tokens { return r.cfg.MinPrompt }

// Decide places q among the workers of lined's view. samples may be nil.
// Errors are ErrUnknownModel or ErrNoWorker. The caller reserves and calls
// [Router.Commit] before the next decision.
func (r *Router) Decide(query *Query, lined *load.Columns, samples *fleet.Samples, caches Caches) (Decision, error) {
	d := Decision{
		View: lined.View, Slots: lined.Slots, Mandate: r.fixed.Mandate,
		Prefill: None, NextPrefill: None,
	}
	r.phases[prefilling].asked = false
	if len(lined.View.Serving(query.Model)) == 0 {
		return d, ErrUnknownModel
	}
	r.query = *query // policies get a copy, so that the caller's need not be on the heap
	q := &r.query
	q.Draw = r.rng.Uint64()
	r.aligned.follow(lined, samples, caches, r.overlay.Forget)
	r.lookup.ask(&r.aligned, r.overlay, q)
	var err error
	if r.cfg.Chooser != nil {
		err = r.decideChosen(q, lined, &d)
	} else {
		err = r.decide(q, lined, &d)
	}
	return d, err
}

// decideChosen decides by the policy that the chooser names now.
func (r *Router) decideChosen(q *Query, lined *load.Columns, d *Decision) error {
	if q.Seed != 0 {
		q.Draw = q.Seed
	}
	choice := r.cfg.Chooser.Choose(q)
	if choice == nil {
		r.choice = r.fixed
		return r.decide(q, lined, d)
	}
	defer r.cfg.Chooser.Done(choice)
	if choice.Policy == nil {
		r.beside = *r.fixed
		r.beside.Shadow, r.beside.needs = choice.Shadow, r.fixed.needs|choice.needs
		r.choice, r.ever = &r.beside, r.ever|r.beside.needs
	} else {
		r.choice, r.ever, d.Mandate = choice, r.ever|choice.needs, choice.Mandate
	}
	err := r.decide(q, lined, d)
	d.Fallback = r.fellBack()
	if err == nil && choice.Shadow != nil {
		r.shadow(choice.Shadow, d)
	}
	return err
}

// decide places q by the policy of r.choice.
func (r *Router) decide(q *Query, lined *load.Columns, d *Decision) error {
	d.Serve, d.NextServe = r.choose(serving, q, lined, None, false)
	if d.Serve == None {
		// An ejection is a guess about the next second. It gives way when the
		// only other answer is no.
		d.Serve, d.NextServe = r.choose(serving, q, lined, None, true)
		d.PassedBy = true
	}
	if d.Serve == None {
		return ErrNoWorker
	}
	d.ServeHit = r.hit(d.Serve)
	r.choosePath(q, lined, d)
	return nil
}

// Basis is what the last decision's Serve cost, and how many requests it had then.
func (r *Router) Basis() (cost, requests float64) {
	p := &r.phases[serving]
	return p.cost[p.best], p.columns.Requests[p.best]
}

// hit is the predicted hit at a worker of the view.
func (r *Router) hit(worker int) unit.Tokens {
	f := &r.aligned.facts[worker]
	return predicted(r.lookup.hit(f.source, f.number, f.trust))
}

// choose vetoes, scores and picks among the workers for one kind of work: those
// that exchange KV with server, unless that is None, and those that are to be
// passed by only if anyway is set.
func (r *Router) choose(kind int, q *Query, lined *load.Columns, server int, anyway bool) (best, next int) {
	p := &r.phases[kind]
	p.asked = true
	s := r.aligned.roster(q.Model, kind)
	lined.Read(s.workers, q.Now, &s.loads)
	p.exclude(s, q, lined, r.aligned.pairing(server), anyway)
	best, next = r.score(kind, s, q, r.choice.Policy, r.choice.needs)
	if best == None && r.choice != r.fixed && r.choice != &r.beside && len(p.cost) > 0 {
		best, next = r.fallBack(kind, s, q)
	}
	return p.columns.place(best), p.columns.place(next)
}

// score fills the columns that are needed, has a policy score and picks places.
func (r *Router) score(kind int, s *roster, q *Query, policy Policy, needs Needs) (best, next int) {
	p := &r.phases[kind]
	p.columns.fill(s, &r.lookup, p.out, needs)
	r.more(kind, s, q, needs)
	n := len(p.columns.Worker)
	p.cost, p.tried = sized(p.cost, n), p.tried[:0]
	if n == 0 {
		return None, None
	}
	p.prompt = kind == prefilling
	q.Prefill = p.prompt
	policy.Score(q, &p.columns, p.cost)
	best, next = r.pick(p.cost)
	p.best = best
	return best, next
}

// pairing says which workers exchange KV with a server. The zero value is for
// all.
type pairing struct {
	facts  []facts
	server int32
}

func (a *aligned) pairing(server int) pairing {
	if server == None {
		return pairing{}
	}
	return pairing{a.facts, int32(server)}
}

func (p pairing) has(worker int32) bool {
	return p.facts == nil || worker != p.server && p.facts[worker].compat == p.facts[p.server].compat
}

// exclude collects who of the roster is no candidate, and of those who would pair
// why.
func (p *phase) exclude(s *roster, q *Query, lined *load.Columns, pairs pairing, anyway bool) {
	p.vetoed, p.out = p.vetoed[:0], p.out[:0]
	for _, i := range s.draining {
		if pairs.has(i) {
			p.vetoed = append(p.vetoed, veto{i, VetoDraining})
		}
	}
	passed := s.loads.Passed
	if anyway {
		passed = nil
	}
	if len(q.Tried) == 0 && pairs.facts == nil {
		for _, k := range passed {
			p.veto(s, k, passedBy(lined.Slots[s.workers[k]], q.Now))
		}
		return
	}
	for k, i := range s.workers {
		toPass := len(passed) > 0 && int(passed[0]) == k
		if toPass {
			passed = passed[1:]
		}
		switch {
		case !pairs.has(i):
			p.out = append(p.out, int32(k))
		case len(q.Tried) > 0 && slices.Contains(q.Tried, lined.Slots[i].Key):
			p.veto(s, int32(k), VetoTried)
		case toPass:
			p.veto(s, int32(k), passedBy(lined.Slots[i], q.Now))
		}
	}
}

// veto takes place k of the roster out.
func (p *phase) veto(s *roster, k int32, why string) {
	p.out = append(p.out, k)
	p.vetoed = append(p.vetoed, veto{s.workers[k], why})
}

// passedBy is why an ejected worker is one.
func passedBy(slot *load.Slot, now time.Time) string {
	switch {
	case slot.Full():
		return VetoFull
	case slot.OutOfService(now):
		return VetoEjected
	case slot.Refusing(now):
		return VetoRefused
	}
	return VetoDoubted
}

// Commit takes in that d, the last decision, is carried out. The caller ends the
// presence when the request has ended.
func (r *Router) Commit(q *Query, d *Decision) Presence {
	r.assign(q, d, d.Serve, d.ServeHit, d.Path == Disaggregated)
	if d.Prefill != None {
		r.assign(q, d, d.Prefill, d.PrefillHit, false)
	}
	r.remember(q, d)
	if r.aligned.any[fromEvents] {
		r.speculate(q, d.Serve)
		if d.Prefill != None {
			r.speculate(q, d.Prefill)
		}
	}
	return r.lookup.crowd.enter(q.Chain, r.aligned.facts[d.Serve].key)
}

// speculate enters that the worker is about to hold the prompt, until its events
// say so. What it is known to hold already needs no guess.
func (r *Router) speculate(q *Query, worker int) {
	f := &r.aligned.facts[worker]
	if f.source == fromEvents && r.lookup.events.Of(f.number) < len(q.Chain) {
		r.overlay.Add(f.number, q.Chain, q.Now)
	}
}

const (
	// assignedRequest is what a request counts as beside its prompt, in tokens.
	assignedRequest = 256
	// assignedMemory is how much work, in tokens for each worker, makes what was
	// given before count for 1/e: about what fills a cache once.
	assignedMemory = 1 << 18
	// fadeEach is how much of that is let go by between two fadings, which touch
	// every worker.
	fadeEach = 1. / 64
)

// assign counts the work a worker is given: the prompt's uncached tokens, unless
// another worker computes them.
func (r *Router) assign(q *Query, d *Decision, worker int, hit unit.Tokens, moved bool) {
	tokens := float64(assignedRequest)
	if !moved {
		tokens += float64(max(q.Prompt-hit, 0))
	}
	memory := assignedMemory * float64(len(d.Slots))
	if r.assigned += tokens; r.assigned > fadeEach*memory {
		fade := math.Exp(-r.assigned / memory)
		for _, slot := range d.Slots {
			slot.Fade(fade)
		}
		r.assigned = 0
	}
	d.Slots[worker].Assign(tokens)
}

// pick returns the places of the lowest and second lowest cost. Among equals
// chance decides; NaN takes no part.
func (r *Router) pick(cost []float64) (best, next int) {
	lowest := leastOf(cost)
	ties, second := runnersUp(cost, lowest)
	switch {
	case ties == 0:
		return None, None
	case ties == 1 && lowest == second: // both infinite
		return placeOf(cost, lowest), None
	case ties == 1:
		return placeOf(cost, lowest), placeOf(cost, second)
	}
	first := r.rng.IntN(ties)
	other := (first + 1 + r.rng.IntN(ties-1)) % ties // another one
	return nth(cost, lowest, first), nth(cost, lowest, other)
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
