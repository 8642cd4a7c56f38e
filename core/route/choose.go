package route

import "math"

// Chooser says which policy decides, where that changes while traffic flows. Its
// methods must not wait; a chooser may serve several routers.
type Chooser interface {
	// Choose names the policy for q, of which the request's own facts are set. nil
	// stands for [Config.Policy].
	Choose(q *Query) *Choice
	// Done is told, once for each choice that is not nil, that nothing of it is used
	// any more: its policies may end.
	Done(c *Choice)
}

// Choice is by whom a decision is made. A chooser makes it once with [NewChoice]
// and hands it out many times; it is not changed.
type Choice struct {
	// Policy decides; nil is [Config.Policy], under its own mandate.
	Policy Policy
	// Fallback decides where Policy finds nobody eligible; nil is [Config.Policy].
	Fallback Policy
	Shadow   Shadow // nil for none
	Mandate  Mandate
	// Held is the chooser's own, to know a choice by when it is done.
	Held  any
	needs Needs
}

// Mandate is under whose name a decision is made.
type Mandate struct {
	Policy string // the policy's name, with its version if it has one
	Digest string // of the version's bytes, in hexadecimal; empty for native policies
	Index  uint64 // of the log entry that bound the policy; 0 for one that is configured
	Canary bool   // the decision is one of the share that tries the policy
}

// Shadow is a policy that is tried without deciding: it scores the same columns
// after the pick.
type Shadow interface {
	Policy
	// Compared is told after each decision whether the worker that was picked is also
	// among the shadow's cheapest; unless it has said [Columns.FellBack].
	Compared(agrees bool)
}

// NewChoice makes a choice. p and shadow may be nil.
func NewChoice(p Policy, shadow Shadow, m Mandate) *Choice {
	c := &Choice{Policy: p, Shadow: shadow, Mandate: m}
	if p != nil {
		c.needs = NeedsOf(p)
	}
	if shadow != nil {
		c.needs |= NeedsOf(shadow)
	}
	return c
}

// shadow has the shadow score what d was decided from. Nothing of the decision
// depends on it.
func (r *Router) shadow(s Shadow, d *Decision) {
	agrees, answered := r.phases[serving].shadow(s, &r.query, d.Serve)
	if p := &r.phases[prefilling]; p.asked && d.Prefill != None {
		too, both := p.shadow(s, &r.query, d.Prefill)
		agrees, answered = agrees && too, answered && both
	}
	if answered {
		s.Compared(agrees)
	}
}

// shadow scores, and reports whether no candidate is cheaper than the one that was
// picked, and whether it had an answer.
func (p *phase) shadow(s Shadow, q *Query, picked int) (agrees, answered bool) {
	c := &p.columns
	parts, fell := len(c.parts), c.fell
	c.fell = ""
	p.tried = sized(p.tried, len(p.cost))
	q.Prefill = p.prompt
	s.Score(q, c, p.tried)
	answered = c.fell == ""
	c.parts, c.fell = c.parts[:parts], fell // what is explained is the decision
	lowest, own := math.Inf(1), math.NaN()
	for i, v := range p.tried {
		if v < lowest {
			lowest = v
		}
		if int(c.Worker[i]) == picked {
			own = v
		}
	}
	return own <= lowest, answered
}

// fallBack decides in place of a policy that found nobody eligible: one that was
// uploaded makes decisions worse, never impossible.
func (r *Router) fallBack(kind int, s *roster, q *Query) (best, next int) {
	c := &r.phases[kind].columns
	why := c.fell
	if why == "" {
		why = "none"
	}
	best, next = None, None
	// A shadow scores these columns too, so that they are filled for it as well.
	if other := r.choice.Fallback; other != nil {
		best, next = r.score(kind, s, q, other, NeedsOf(other)|r.choice.needs)
	}
	if best == None {
		best, next = r.score(kind, s, q, r.fixed.Policy, r.fixed.needs|r.choice.needs)
	}
	c.FellBack(why)
	return best, next
}

// Part takes scratch space for what one part of a policy that combines several
// finds, a cost for each candidate. An explanation of the decision shows it under
// that name, in the order in which the parts were taken.
func (c *Columns) Part(name string) []float64 {
	cost := c.column(len(c.Worker))
	c.parts = append(c.parts, part{name, cost})
	return cost
}

// FellBack says that the policy could not answer and another one did in its place.
// why is a machine word of the policy's own; of several the last one counts.
func (c *Columns) FellBack(why string) { c.fell = why }

// fellBack is why another policy decided for one of the legs, or empty.
func (r *Router) fellBack() string {
	if p := &r.phases[prefilling]; p.asked && p.columns.fell != "" {
		return p.columns.fell
	}
	return r.phases[serving].columns.fell
}

// part is what one of several policies found.
type part struct {
	name string
	cost []float64
}
