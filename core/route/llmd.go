package route

import (
	"math"

	"github.com/yardmaster/yardmaster/core/native"
)

// LLMD is the blend that llm-d ships, as a baseline: the highest
//
//	2·prefix + 1·queue + 1·(1 − KV use)
//
// wins, where prefix is the hit between the candidates' least, 0, and most, 1;
// queue is the waiting requests between the most, 0, and the least, 1. Where all
// are equal, prefix is 0 and queue is 1. Source: the prefix-cache, queue and KV
// utilization scorers of the llm-d router and their default weights.
//
// A worker that does not say how many requests wait is taken to have those that
// are known to be on it wait; one that does not say how many KV blocks it has is
// half full. Its signals are as old as the workers' last words, so requests that
// come together go together: it is here to compare with.
type LLMD struct {
	// Prefix, Queue and KV are the weights; all 0 means 2, 1 and 1.
	Prefix, Queue, KV float64
}

// Name is "llm-d".
func (LLMD) Name() string { return "llm-d" }

// Needs is what the policy reads of what is filled on demand.
func (LLMD) Needs() Needs { return NeedsActive }

// Tune sets the parameters.
func (p LLMD) Tune(s *native.Params) Policy {
	s.Number(&p.Prefix, native.Param{Name: "prefix", Default: 2, Least: .001, Most: 1e6, Help: "weight of the prefix held"})
	s.Number(&p.Queue, native.Param{Name: "queue", Default: 1, Most: 1e6, Help: "weight of a short queue"})
	s.Number(&p.KV, native.Param{Name: "kv", Default: 1, Most: 1e6, Help: "weight of free KV blocks"})
	return p
}

// Score is the sum of the weights less the score.
func (p LLMD) Score(_ *Query, c *Columns, cost []float64) {
	if p == (LLMD{}) {
		p = LLMD{2, 1, 1}
	}
	waiting := cost
	for i := range waiting {
		waiting[i] = c.waiting(i)
	}
	hits, queued := spreadOf(c.Hit[:len(cost)]), spreadOf(waiting)
	prefix, queue, missed := hits.per(p.Prefix), queued.per(p.Queue), 0.0
	if prefix == 0 {
		missed = p.Prefix
	}
	for i, h := range c.Hit[:len(cost)] {
		cost[i] = missed + prefix*(hits.most-h) + queue*(waiting[i]-queued.least) + p.KV*c.use(i)
	}
}

// spread is the least and the most of a column.
type spread struct{ least, most float64 }

func spreadOf(column []float64) spread {
	s := spread{leastOf(column), math.Inf(-1)}
	for _, v := range column {
		if v > s.most {
			s.most = v
		}
	}
	return s
}

// per is what a weight makes of each unit between the two, 0 where they are equal.
func (s spread) per(weight float64) float64 {
	if s.most > s.least {
		return weight / (s.most - s.least)
	}
	return 0
}

// waiting is the requests that wait at candidate i, or may.
func (c *Columns) waiting(i int) float64 {
	if w := c.Waiting[i]; w >= 0 {
		return w
	}
	return c.Requests[i]
}

// use is the share of candidate i's KV blocks that requests hold; a half where it
// is unknown.
func (c *Columns) use(i int) float64 {
	if !(c.Capacity[i] > 0) || c.Active == nil {
		return .5
	}
	switch used := c.Active[i] / c.Capacity[i]; {
	case used > 1:
		return 1
	case used > 0:
		return used
	}
	return 0
}
