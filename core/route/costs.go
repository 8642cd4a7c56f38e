package route

import (
	"math"

	"github.com/yardmaster/yardmaster/core/mix"
	"github.com/yardmaster/yardmaster/core/native"
)

// KVCost weighs the work in front of the first token against the KV that the
// request would add: s·max(0, (U+n)/b − hit) + K' + w·r, in blocks of b tokens,
// where K' is the active blocks after placement. Source: the KV router of
// Dynamo; why its scale ships as 8 is in DESIGN.md.
type KVCost struct {
	// Scale is s; 0 means 8.
	Scale float64
	// Requests is w, what a request in flight counts in blocks; default 0.
	Requests float64
}

// Name is "kv-cost".
func (KVCost) Name() string { return "kv-cost" }

// Tune sets the parameters.
func (p KVCost) Tune(s *native.Params) Policy {
	s.Number(&p.Scale, native.Param{Name: "scale", Default: 8, Least: .001, Most: 1e6, Help: "what a block to compute counts, in active blocks"})
	s.Number(&p.Requests, native.Param{Name: "requests", Most: 1e6, Help: "what a request in flight counts, in blocks"})
	return p
}

// Score is the formula of the type. Blocks that requests share count once: a hit
// adds nothing to K.
func (p KVCost) Score(q *Query, c *Columns, cost []float64) {
	scale := p.Scale
	if scale == 0 {
		scale = 8
	}
	n, b := float64(q.Prompt), blockTokens(q)
	for i := range cost {
		prefill := max(0, (c.Queued[i]+n-c.Hit[i])/b)
		active := c.Active[i] + (n-c.Hit[i])/b
		cost[i] = scale*prefill + active + p.Requests*c.Requests[i]
	}
}

func blockTokens(q *Query) float64 {
	if q.BlockTokens > 0 {
		return float64(q.BlockTokens)
	}
	return float64(usualBlock)
}

// LMetric multiplies the tokens to compute by the batch they join:
// (n−h)·(r+1). Among equals the shorter queue wins.
type LMetric struct{}

// Name is "lmetric".
func (LMetric) Name() string { return "lmetric" }

// Score is the product, and less than 1 more for the queue.
func (LMetric) Score(q *Query, c *Columns, cost []float64) {
	n := float64(q.Prompt)
	for i := range cost {
		u := c.Queued[i]
		cost[i] = math.Round(n-c.Hit[i])*(c.Requests[i]+1) + u/(u+1)
	}
}

// BoundedHash gives each prefix a home by rendezvous hashing, and passes over
// workers that have more than their share of the load: those at
// ceil(Factor·(m+1)/N) requests or more, of m on N candidates. It needs to know
// nothing of caches.
type BoundedHash struct {
	// Factor is how far above the mean a worker may be; 0 means 1.25.
	Factor float64
	// Blocks is how many leading blocks of the prompt make the key; 0 means 16.
	Blocks int
}

// Name is "bounded-hash".
func (BoundedHash) Name() string { return "bounded-hash" }

// Tune sets the parameters.
func (p BoundedHash) Tune(s *native.Params) Policy {
	s.Number(&p.Factor, native.Param{Name: "factor", Default: 1.25, Least: 1, Most: 1e6, Help: "how far above the mean load a worker may be"})
	s.Count(&p.Blocks, native.Param{Name: "blocks", Default: 16, Least: 1, Most: 1 << 20, Help: "leading blocks of the prompt that make the key"})
	return p
}

// Score orders the candidates as the key's rendezvous does; those over the bound
// come after all others. A prompt without a whole block goes anywhere.
func (p BoundedHash) Score(q *Query, c *Columns, cost []float64) {
	factor, depth := p.Factor, p.Blocks
	if factor == 0 {
		factor = 1.25
	}
	if depth == 0 {
		depth = 16
	}
	key := q.Draw
	if len(q.Chain) > 0 {
		key = uint64(q.Chain[min(len(q.Chain), depth)-1])
	}
	m := 1.0
	for _, r := range c.Requests {
		m += r
	}
	bound := math.Ceil(factor * m / float64(len(cost)))
	for i := range cost {
		cost[i] = 1 - unit01(mix.Bits(key^c.Key[i]))
		if c.Requests[i] >= bound {
			cost[i]++
		}
	}
}

// unit01 makes a number in [0, 1) of 53 bits.
func unit01(x uint64) float64 { return float64(x>>11) / (1 << 53) }
