package route

import (
	"math"
	"time"

	"github.com/yardmaster/yardmaster/core/cost"
	"github.com/yardmaster/yardmaster/core/native"
	"github.com/yardmaster/yardmaster/core/unit"
)

// Mooncake takes the worker with the earliest first token, where a worker that
// holds little of the prompt may have the rest of the prefix moved to it: in
// seconds, of n prompt tokens with U queued, h held and h* the longest hit,
//
//	(U + n − h)/rate                                   computed there
//	transfer(h* − h) + (U + n − h*)/rate               moved, if h*/h > Threshold
//
// whichever is less. Source: Mooncake (FAST '25), algorithm 1, KV-centric
// scheduling; there a prefix above the threshold is moved even where computing
// it is faster.
//
// h* is that of the candidates of the same group, which compute prompts and
// exchange KV; the move itself is the disaggregated path. Where nobody moves KV,
// or the worker does not say what a token takes (the label kv-token-bytes), every
// prefix is computed. Unmeasured rates are the mean of those measured, else
// 15,928 tokens/s.
type Mooncake struct {
	// Threshold is how many times longer than the own one another's hit must be to be
	// moved; 0 means 2.
	Threshold float64
	// Link predicts the moves; the zero value is that of [Config].
	Link cost.Link
	// SLO is the longest first token that a worker may be predicted to take; a
	// worker beyond is ineligible. 0 means none.
	SLO time.Duration
}

// Name is "mooncake".
func (Mooncake) Name() string { return "mooncake" }

// Needs is what the policy reads of what is filled on demand.
func (Mooncake) Needs() Needs { return NeedsTransfer }

// Tune sets the parameters.
func (p Mooncake) Tune(s *native.Params) Policy {
	s.Number(&p.Threshold, native.Param{Name: "threshold", Default: 2, Least: 1, Most: 1e6, Help: "how many times longer than the own hit another's must be to be moved"})
	s.Seconds(&p.SLO, native.Param{Name: "slo_seconds", Most: 3600, Help: "longest first token that a worker may be predicted to take; 0 is any"})
	return p
}

// Score is the formula of the type.
func (p Mooncake) Score(q *Query, c *Columns, costs []float64) {
	if p.Threshold == 0 {
		p.Threshold = 2
	}
	if p.Link == (cost.Link{}) {
		p.Link = usualLink()
	}
	n, rates, best := float64(q.Prompt), c.measuredRates(), longestByGroup(c)
	for i := range costs {
		h, rate := c.Hit[i], rates.at(i)
		first := max(c.Queued[i]+n-h, 0) / rate
		if longest := best.of(c, i); longest > h && longest > p.Threshold*h {
			if moving, ok := p.moving(longest-h, c.TokenBytes[i]); ok {
				first = min(first, moving+max(c.Queued[i]+n-longest, 0)/rate)
			}
		}
		if p.SLO > 0 && first > p.SLO.Seconds() {
			first = math.NaN()
		}
		costs[i] = first
	}
}

// moving is the seconds that so many tokens are on the way.
func (p Mooncake) moving(tokens, tokenBytes float64) (seconds float64, ok bool) {
	if !(tokenBytes > 0) {
		return 0, false
	}
	t, ok := cost.TransferTime(p.Link, unit.Bytes(tokens*tokenBytes))
	return t.Seconds(), ok
}

// longest are the longest hits of each group.
type longest []float64

func longestByGroup(c *Columns) longest {
	if len(c.Group) == 0 {
		return nil
	}
	groups := uint32(0)
	for _, g := range c.Group {
		groups = max(groups, g)
	}
	best := longest(c.column(int(groups) + 1))
	clear(best)
	for i, g := range c.Group {
		best[g] = max(best[g], c.Hit[i])
	}
	return best
}

// of is what candidate i could have moved to it; 0 where nobody gives it any.
func (l longest) of(c *Columns, i int) float64 {
	if l == nil || c.Group[i] == 0 {
		return 0
	}
	return l[c.Group[i]]
}
