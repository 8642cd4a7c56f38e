package route

import (
	"math"
	"slices"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/prefix"
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
	Siblings []float64 // Requests that share half the hit or more, by InFlight's part; 0 where Requests is below fewSiblings
	Share    []float64 // work given lately, over the candidates' mean; 0 when none got any

	// Those below are nil unless the policy asks for them.
	Step         []float64 // seconds a decode step takes, as measured by the worker, or NaN
	TokenBytes   []float64 // bytes of KV that a token takes, by label, or NaN
	Group        []uint32  // candidates of one group can compute parts of prompts for each other; 0 is none. nil where nobody does
	Adapters     []float64 // how many adapters the worker serves when the model is one of them; 0 when it is its own
	AdapterSlots []float64 // how many of them it keeps loaded, by label, or NaN
	Lately       []float64 // seconds since this gateway gave it a request for the model, when that is an adapter; infinite if not lately
	Missed       []float64 // prompt tokens this gateway gave it to compute in the last three minutes
	Found        []float64 // prompt tokens of those requests that its cache was believed to hold

	Role []uint32  // the phases it serves, of fleet.Role
	Zone []uint32  // a number for its zone, by label, the same for the same zone; 0 is unknown
	Age  []float64 // seconds since it last said something of itself, or NaN

	base        []float64 // Active as far as the worker itself said
	context     []float64 // tokens of KV that gateways' requests added
	blockTokens float64
	hits        []float64 // Hit's memory
	active      []float64 // Active's memory
	sharing     []float64 // Siblings's memory
	shares      []float64 // Share's memory
	rates       rates
	own         owned
	memory      extraMemory
	scratch     []float64 // of Score
	parts       []part    // of Score, in scratch
	fell        string    // why Score was another policy's
}

// owned is the memory of what usually is a roster's: columns without the workers
// that are out.
type owned struct {
	worker []int32
	key    []uint64
	floats [10][]float64
}

// fewSiblings is how many requests in flight it takes for siblings to matter.
const fewSiblings = 4

// fill makes the columns those of the roster's workers, whose loads were read,
// without the places in out, which rise. Columns that are not needed stay nil.
func (c *Columns) fill(s *roster, l *lookup, out []int32, needs Needs) {
	c.Worker, c.Key = s.workers, s.key
	c.Running, c.Waiting, c.Rate, c.base, c.Capacity = s.running, s.waiting, s.rate, s.active, s.capacity
	c.InFlight, c.Requests, c.Queued = s.loads.InFlight, s.loads.Requests, s.loads.Queued
	c.context, c.Share, c.rates = s.loads.Context, s.loads.Assigned, s.rates
	c.hits = sized(c.hits, len(s.workers))
	c.Hit = c.hits
	l.fill(s, c.Hit)
	if len(out) > 0 {
		c.squeeze(out)
	}
	c.scratch, c.parts, c.fell = c.scratch[:0], c.parts[:0], ""
	c.share()
	c.blockTokens = l.blockTokens
	c.Siblings, c.Active = nil, nil
	if needs&NeedsSiblings != 0 {
		c.siblings(l)
	}
	if needs&NeedsActive != 0 {
		c.occupy()
	}
}

// sized is a slice of n elements, in the memory of s if it has enough.
func sized(s []float64, n int) []float64 { return slices.Grow(s[:0], n)[:n] }

// squeeze takes the places in out from every column.
func (c *Columns) squeeze(out []int32) {
	c.Worker, c.Key = without(&c.own.worker, c.Worker, out), without(&c.own.key, c.Key, out)
	for k, column := range [...]*[]float64{
		&c.Running, &c.Waiting, &c.Rate, &c.base, &c.Capacity,
		&c.InFlight, &c.Requests, &c.Queued, &c.context, &c.Share,
	} {
		*column = without(&c.own.floats[k], *column, out)
	}
	c.Hit = without(&c.hits, c.Hit, out)
	c.rates = ratesOf(c.Rate)
}

// rates are what is asked of all rates that are known.
type rates struct {
	mean, peak float64 // tokens/s; 0 where none is known
	equal      bool    // each is the mean
	surveyed   bool
}

func ratesOf(column []float64) rates {
	r, known := rates{surveyed: true, equal: true}, 0
	for _, v := range column {
		if v > 0 {
			r.mean += v
			r.peak = max(r.peak, v)
			known++
		}
	}
	if known > 0 {
		r.mean /= float64(known)
	}
	for _, v := range column {
		if v > 0 && v != r.mean {
			r.equal = false
		}
	}
	return r
}

// siblings fills that column.
func (c *Columns) siblings(l *lookup) {
	n := len(c.Worker)
	c.sharing = sized(c.sharing, n)
	c.Siblings = c.sharing
	siblings, requests, hit, key := c.Siblings[:n], c.Requests[:n], c.Hit[:n], c.Key[:n]
	at, lead, some := 0.0, prefix.Hash(0), false
	for k, own := range c.InFlight[:n] {
		var mine float64
		if all := requests[k]; all >= fewSiblings && own > 0 && hit[k] > 0 {
			if hit[k] != at { // many have the same
				at = hit[k]
				lead, some = leading(l.chain, int(at*l.perToken))
			}
			if some {
				mine = float64(l.crowd.of(lead, key[k]))
			}
			if all != own {
				mine = mine * all / own // others' requests are taken to be like these
			}
		}
		siblings[k] = mine
	}
}

// share turns work given into shares.
func (c *Columns) share() {
	given := c.Share
	sum := sumOf(given)
	c.shares = sized(c.shares, len(given))
	c.Share = c.shares
	if sum <= 0 {
		clear(c.shares)
		return
	}
	scale(given, float64(len(given))/sum, c.shares)
}

// occupy fills Active.
func (c *Columns) occupy() {
	c.active = sized(c.active, len(c.Worker))
	c.Active = c.active
	for k := range c.Active {
		c.Active[k] = c.occupied(k)
	}
}

// occupied is Active of one candidate. A worker's own word is older than the
// requests that gateways have sent.
func (c *Columns) occupied(k int) float64 {
	if added := c.context[k] / c.blockTokens; added > c.base[k] {
		return added
	}
	return c.base[k]
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
	f.step = math.NaN()
	if step := reading(s.DecodeStepSeconds); step > 0 {
		f.step = step
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
