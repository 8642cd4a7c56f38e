package route

import "github.com/yardmaster/yardmaster/core/native"

// Preble exploits a prefix where more of the prompt is cached than is left to
// compute, and explores otherwise. Exploiting, the cheapest of those that hold
// the longest hit is taken; exploring, the cheapest of all. A worker costs, in
// seconds,
//
//	(M + e·f + n − h)/rate + r·Output·step
//
// where M is the prompt tokens that it was given to compute in the last three
// minutes, r its requests, step its time per token, e = M + n − h − capacity,
// between 0 and n − h, the tokens that this prompt would evict, and f the share
// of its prompts that was found cached in that time: how likely an evicted token
// is to be computed again. A holder whose cost is more than Rebalance times the
// lowest is not exploited, so that its prefix is copied. Source: Preble (ICLR
// '25), E2.
//
// Preble divides a prefix's prefill by its holders; M is what each had to compute
// itself, so it is divided already. It learns outputs' lengths and moves prefixes
// at most every 10 s; here outputs are taken to be equal and every cost contains
// what copying takes. The window is this gateway's own. Unmeasured rates are the
// mean of those measured, else 15,928 tokens/s; unmeasured steps the mean, else
// they count for nothing; nothing is evicted where the capacity is unknown.
type Preble struct {
	// Output is how many tokens a request in flight is taken to generate; 0 means
	// 128.
	Output float64
	// Rebalance is described above; 0 means 1.5.
	Rebalance float64
}

// Name is "preble".
func (Preble) Name() string { return "preble" }

// Needs is what the policy reads of what is filled on demand.
func (Preble) Needs() Needs { return NeedsStep | NeedsWindow }

// Tune sets the parameters.
func (p Preble) Tune(s *native.Params) Policy {
	s.Number(&p.Output, native.Param{Name: "output", Default: 128, Least: .001, Most: 1e6, Help: "tokens that a request in flight is taken to generate"})
	s.Number(&p.Rebalance, native.Param{Name: "rebalance", Default: 1.5, Least: 1, Most: 1e6, Help: "how many times the lowest cost a holder may cost"})
	return p
}

// Score is the formula of the type; those that hold less come after all holders
// that are exploited.
func (p Preble) Score(q *Query, c *Columns, cost []float64) {
	if p.Output == 0 {
		p.Output = 128
	}
	if p.Rebalance == 0 {
		p.Rebalance = 1.5
	}
	if len(cost) == 0 {
		return
	}
	rates, steps := c.measuredRates(), reportedOf(c.Step, 0)
	n, b := float64(q.Prompt), blockTokens(q)
	longest := 0.0
	for i, h := range c.Hit[:len(cost)] {
		longest = max(longest, h)
		missed, found := c.recent(i)
		left := max(n-h, 0)
		cost[i] = (missed+evicted(missed, left, c.Capacity[i]*b)*share(found, missed)+left)/rates.at(i) +
			c.Requests[i]*p.Output*steps.at(i)
	}
	if longest <= n-longest {
		return
	}
	lowest := cost[0]
	for _, v := range cost {
		lowest = min(lowest, v)
	}
	for i, h := range c.Hit[:len(cost)] {
		if h < longest || cost[i] > p.Rebalance*lowest {
			cost[i] += behind
		}
	}
}

// recent is what candidate i was given in the window; nothing where that is not
// kept.
func (c *Columns) recent(i int) (missed, found float64) {
	if c.Missed == nil || c.Found == nil {
		return 0, 0
	}
	return c.Missed[i], c.Found[i]
}

// evicted is how many tokens do not fit beside those of the window. A capacity of
// NaN evicts nothing.
func evicted(missed, left, capacity float64) float64 {
	over := missed + left - capacity
	if !(over > 0) {
		return 0
	}
	return min(over, left)
}

// share is the part that a has of both.
func share(a, b float64) float64 {
	if a+b <= 0 {
		return 0
	}
	return a / (a + b)
}
