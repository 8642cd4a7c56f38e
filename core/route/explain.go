package route

import (
	"math"
	"slices"

	"github.com/yardmaster/yardmaster/core/fleet"
)

// MaxExplained bounds the candidates, and the vetoes, that an explanation keeps
// of each choice.
const MaxExplained = 8

// Explanation is how the last decision came about. It holds no text of requests.
type Explanation struct {
	// Serving and Prefilling are the candidates for either leg, the cheapest first;
	// Prefilling is empty when no second worker was looked for.
	Serving, Prefilling []Candidate
	// Vetoed are the workers that were no candidates.
	Vetoed []Vetoed
	// Candidates and Vetoes are how many there were, with those that are left out.
	Candidates, Vetoes int
	// Policies are the parts of a policy that combines several; Shadow is one that
	// was tried beside it. Both are empty where there is none.
	Policies []string
	Shadow   string

	parts []float64 // memory of Candidate.Parts
}

// Candidate is a worker with its columns and its cost. Numbers are NaN where
// they are unknown, and Siblings where the policy does not ask for them.
type Candidate struct {
	Worker fleet.WorkerID
	Cost   float64
	Hit    float64 // tokens
	Queued float64 // tokens

	InFlight, Requests, Siblings, Running, Waiting float64 // requests
	Active, Capacity                               float64 // KV blocks
	Rate                                           float64 // tokens/s
	Share                                          float64

	Parts  []float64 // what each of Explanation.Policies found, as it found it
	Shadow float64   // what Explanation.Shadow found
}

// Vetoed is a worker that was no candidate, and why: one of the Veto constants.
type Vetoed struct {
	Worker fleet.WorkerID
	Why    string
}

// Explain writes how the last decision came about over into, whose memory it
// uses again.
func (r *Router) Explain(d *Decision, into *Explanation) {
	s, p := &r.phases[serving], &r.phases[prefilling]
	into.Prefilling, into.Vetoed = into.Prefilling[:0], into.Vetoed[:0]
	into.Candidates, into.Vetoes = len(s.columns.Worker), 0
	into.name(s, r.choice.Shadow)
	into.Serving = into.explain(d, s, into.Serving[:0])
	into.veto(d, s)
	if p.asked {
		into.Prefilling = into.explain(d, p, into.Prefilling)
		into.veto(d, p)
	}
}

// Clone is a copy with memory of its own.
func (e *Explanation) Clone() Explanation {
	out := *e
	out.Serving, out.Prefilling, out.Vetoed = slices.Clone(e.Serving), slices.Clone(e.Prefilling), slices.Clone(e.Vetoed)
	out.Policies, out.parts = slices.Clone(e.Policies), nil
	for _, candidates := range [][]Candidate{out.Serving, out.Prefilling} {
		for i := range candidates {
			candidates[i].Parts = slices.Clone(candidates[i].Parts)
		}
	}
	return out
}

// name writes which policies scored beside the one that decided, and makes room for
// what their parts found.
func (e *Explanation) name(p *phase, shadow Shadow) {
	e.Policies, e.Shadow = e.Policies[:0], ""
	for _, part := range p.columns.parts {
		e.Policies = append(e.Policies, part.name)
	}
	if shadow != nil {
		e.Shadow = shadow.Name()
	}
	e.parts = slices.Grow(e.parts[:0], 2*MaxExplained*len(e.Policies))
}

func (e *Explanation) veto(d *Decision, p *phase) {
	e.Vetoes += len(p.vetoed)
	for _, v := range p.vetoed[:min(len(p.vetoed), MaxExplained-len(e.Vetoed))] {
		e.Vetoed = append(e.Vetoed, Vetoed{d.View.Workers[v.worker].ID, v.why})
	}
}

// explain appends the cheapest candidates in order of their costs; those that
// are ineligible come last.
func (e *Explanation) explain(d *Decision, p *phase, dst []Candidate) []Candidate {
	var cheapest [MaxExplained]int
	n := 0
	for i, v := range p.cost {
		at := n
		for at > 0 && cheaper(v, p.cost[cheapest[at-1]]) {
			at--
		}
		if at == MaxExplained {
			continue
		}
		n = min(n+1, MaxExplained)
		copy(cheapest[at+1:n], cheapest[at:])
		cheapest[at] = i
	}
	for _, i := range cheapest[:n] {
		c := p.candidate(d, i)
		c.Parts = e.partsOf(p, i)
		if e.Shadow != "" && len(p.tried) == len(p.cost) {
			c.Shadow = p.tried[i]
		}
		dst = append(dst, c)
	}
	return dst
}

// partsOf is what each part found of candidate i, in e's memory; nil where nothing
// was combined.
func (e *Explanation) partsOf(p *phase, i int) []float64 {
	if len(e.Policies) == 0 || len(p.columns.parts) != len(e.Policies) {
		return nil
	}
	from := len(e.parts)
	for _, part := range p.columns.parts {
		e.parts = append(e.parts, part.cost[i])
	}
	return e.parts[from:]
}

func cheaper(a, b float64) bool { return a < b || math.IsNaN(b) && !math.IsNaN(a) }

func (p *phase) candidate(d *Decision, i int) Candidate {
	c := &p.columns
	siblings := math.NaN()
	if c.Siblings != nil {
		siblings = c.Siblings[i]
	}
	return Candidate{
		Worker: d.View.Workers[c.Worker[i]].ID, Cost: p.cost[i],
		Hit: c.Hit[i], Queued: c.Queued[i],
		InFlight: c.InFlight[i], Requests: c.Requests[i], Siblings: siblings, Running: c.Running[i], Waiting: c.Waiting[i],
		Active: c.occupied(i), Capacity: c.Capacity[i], Rate: c.Rate[i], Share: c.Share[i], Shadow: math.NaN(),
	}
}
