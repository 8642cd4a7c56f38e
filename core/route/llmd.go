package route

import "math"

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

// Score is the sum of the weights less the score.
func (p LLMD) Score(_ *Query, c *Columns, cost []float64) {
	if p == (LLMD{}) {
		p = LLMD{2, 1, 1}
	}
	least, most := math.Inf(1), math.Inf(-1)
	short, long := math.Inf(1), math.Inf(-1)
	for i, h := range c.Hit[:len(cost)] {
		least, most = min(least, h), max(most, h)
		waiting := c.waiting(i)
		short, long = min(short, waiting), max(long, waiting)
	}
	for i, h := range c.Hit[:len(cost)] {
		missed := 1.0 // of the weight
		if most > least {
			missed = (most - h) / (most - least)
		}
		queued := 0.0
		if long > short {
			queued = (c.waiting(i) - short) / (long - short)
		}
		cost[i] = p.Prefix*missed + p.Queue*queued + p.KV*c.use(i)
	}
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
	return min(max(c.Active[i]/c.Capacity[i], 0), 1)
}
