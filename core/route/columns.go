package route

import (
	"math"
	"slices"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/unit"
)

// Columns describe the candidates of one phase, index for index. NaN is
// unknown, which is not zero.
type Columns struct {
	Worker   []int32   // place in View.Workers
	Key      []uint64  // a hash of the worker's id, the same at every gateway
	InFlight []float64 // this gateway's requests on the worker, both phases
	Requests []float64 // InFlight, and those of others as far as known
	Queued   []float64 // U: uncached prompt tokens this gateway sent that are not computed yet
	Hit      []float64 // h: leading prompt tokens that the worker's cache is believed to hold
	Active   []float64 // K: KV blocks that requests hold; a block that they share counts once
	Capacity []float64 // KV blocks there are, or NaN
	Running  []float64 // requests being computed, as the worker last said, or NaN
	Waiting  []float64 // requests accepted and not begun, as the worker last said, or NaN
	Rate     []float64 // prompt tokens/s, as measured by the worker, or NaN
	Siblings []float64 // InFlight that share half the hit or more; 0 where InFlight is below fewSiblings
	Share    []float64 // work given lately, over the candidates' mean; 0 when none got any

	n       int       // candidates so far, while the columns are filled
	scratch []float64 // of Blend
}

// reset makes room for up to n candidates.
func (c *Columns) reset(n int) {
	c.n = 0
	c.Worker, c.Key = slices.Grow(c.Worker[:0], n)[:n], slices.Grow(c.Key[:0], n)[:n]
	for _, f := range c.floats() {
		*f = slices.Grow((*f)[:0], n)[:n]
	}
	c.scratch = c.scratch[:0]
}

// floats are the columns of numbers.
func (c *Columns) floats() [11]*[]float64 {
	return [...]*[]float64{
		&c.InFlight, &c.Requests, &c.Queued, &c.Hit, &c.Active,
		&c.Capacity, &c.Running, &c.Waiting, &c.Rate, &c.Siblings, &c.Share,
	}
}

// fewSiblings is how many requests in flight it takes for siblings to matter.
const fewSiblings = 4

// add appends the worker at place i.
func (c *Columns) add(i int32, slot *load.Slot, f *facts, l *lookup) {
	k := c.n
	c.n++
	own, hit := float64(slot.InFlight()), l.hit(f)
	c.Siblings[k] = 0
	if own >= fewSiblings && hit > 0 {
		c.Siblings[k] = float64(l.crowd.of(l.chain, int(hit/l.blockTokens), f.key))
	}
	c.Worker[k], c.Key[k] = i, f.key
	c.InFlight[k], c.Hit[k] = own, hit
	c.Requests[k] = own + float64(slot.Foreign())
	c.Queued[k] = float64(slot.QueuedPrompt())
	// The worker's own word is older than this gateway's requests.
	c.Active[k] = max(f.active, float64(slot.Context())/l.blockTokens)
	c.Capacity[k], c.Running[k], c.Waiting[k], c.Rate[k] = f.capacity, f.running, f.waiting, f.rate
	c.Share[k] = slot.Assigned()
}

// complete ends the filling: it turns work given into shares, and returns the
// number of candidates.
func (c *Columns) complete() int {
	c.Worker, c.Key = c.Worker[:c.n], c.Key[:c.n]
	for _, f := range c.floats() {
		*f = (*f)[:c.n]
	}
	var sum float64
	for _, v := range c.Share {
		sum += v
	}
	if sum <= 0 {
		clear(c.Share)
		return c.n
	}
	scale := float64(c.n) / sum
	for i := range c.Share {
		c.Share[i] *= scale
	}
	return c.n
}

// column takes n numbers of scratch space, which last until the decision is made.
func (c *Columns) column(n int) []float64 {
	c.scratch = slices.Grow(c.scratch, n)
	from := len(c.scratch)
	c.scratch = c.scratch[:from+n]
	return c.scratch[from:]
}

// place is the worker of candidate i.
func (c *Columns) place(i int) int {
	if i == None {
		return None
	}
	return int(c.Worker[i])
}

// usualBlock is the tokens of a KV block where a worker does not say.
const usualBlock unit.Tokens = 16

// hear reads what a worker said of itself into f.
func (f *facts) hear(w *fleet.Worker, s *fleet.Stats) {
	f.running, f.waiting = reading(s.Running), reading(s.Waiting)
	f.rate = math.NaN()
	if rate := reading(s.PrefillTokensPerSecond); rate > 0 {
		f.rate = rate
	}
	f.active = 0
	if free, ok := s.KVBlocksFree.Usable(); ok && w.Capacity.KVBlocks > 0 {
		f.active = max(float64(w.Capacity.KVBlocks)-free, 0)
	}
}

// reading is a number, or NaN when it is unknown.
func reading(r fleet.Reading) float64 {
	v, ok := r.Usable()
	if !ok {
		return math.NaN()
	}
	return v
}
