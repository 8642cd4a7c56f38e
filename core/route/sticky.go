package route

import (
	"math"
	"time"
)

// Sticky keeps a prompt with the worker that holds most of it until that worker
// is saturated: until its load exceeds another's by more than recomputing the
// prefix there would cost, or by MaxWait of queueing. Only then is the prefix
// computed a second time, and from then on its holders share the load.
//
// Load is in tokens: those that queue, and RequestTokens for each request. A
// prompt that nobody holds goes where load is least; where it is equal, as it is
// when all are idle, to the worker that was given the least work lately, so that
// caches fill evenly. Where prefill rates are known the costs of slower workers
// are larger in proportion.
type Sticky struct {
	// Hold is how many times the recomputation's own cost a worker's load may
	// exceed another's before the prefix is copied; 0 means 1.
	Hold float64
	// RequestTokens is what a request in flight counts as, in prompt tokens; 0
	// means 256.
	RequestTokens float64
	// Balance is what a worker with the mean share of recent work counts as, in
	// prompt tokens, for a prompt that it holds nothing of; 0 means 2048.
	Balance float64
	// MaxWait bounds the queueing that affinity is worth, where the prefill rate is
	// measured; 0 means 18 s.
	MaxWait time.Duration
}

// Name is "sticky".
func (Sticky) Name() string { return "sticky" }

func (p Sticky) withDefaults() Sticky {
	if p.Hold == 0 {
		p.Hold = 1
	}
	if p.RequestTokens == 0 {
		p.RequestTokens = 256
	}
	if p.Balance == 0 {
		p.Balance = 2048
	}
	if p.MaxWait == 0 {
		p.MaxWait = 18 * time.Second
	}
	return p
}

// Score is, in tokens,
//
//	U + RequestTokens·r + (n−h*) + min(Hold·(h*−h), tau) + Balance·share·(n−h)/n
//
// where h* is the longest hit and tau what the fastest worker computes in
// MaxWait; times mean rate over own rate.
func (p Sticky) Score(q *Query, c *Columns, cost []float64) {
	p = p.withDefaults()
	n := max(float64(q.Prompt), 1)
	var longest float64
	for _, h := range c.Hit {
		longest = max(longest, h)
	}
	mean, peak := rates(c.Rate)
	tau := math.Inf(1)
	if peak > 0 {
		tau = peak * p.MaxWait.Seconds()
	}
	for i := range cost {
		h := c.Hit[i]
		load := c.Queued[i] + p.RequestTokens*c.Requests[i]
		again := min(p.Hold*(longest-h), tau)
		cost[i] = load + n - longest + again + p.Balance*c.Share[i]*(n-h)/n
		if rate := c.Rate[i]; rate > 0 {
			cost[i] *= mean / rate
		}
	}
}

// rates are the mean and the highest of the known ones; 0 when none is.
func rates(column []float64) (mean, peak float64) {
	known := 0
	for _, v := range column {
		if v > 0 {
			mean += v
			peak = max(peak, v)
			known++
		}
	}
	if known > 0 {
		mean /= float64(known)
	}
	return mean, peak
}
