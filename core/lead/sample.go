package lead

import (
	"math"
	"slices"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/core/traffic"
)

// sampler makes the samples of pools. It belongs to one goroutine, and to one
// leadership: what was measured before says nothing.
type sampler struct {
	meter *traffic.Meter
	best  map[scale.Key]float64 // the best decode rate of one replica seen
}

func newSampler() *sampler {
	return &sampler{meter: traffic.NewMeter(), best: map[scale.Key]float64{}}
}

// scene is what a sample is made of.
type scene struct {
	view    *fleet.View
	said    *fleet.Samples
	plan    *scale.Plan
	traffic *traffic.Book
	wanted  []scale.Key // pools that are to be there though nobody serves in them
	// sleeps says that a pool may be empty, and is to come back when somebody asks;
	// nil is that none does.
	sleeps func(scale.Key) bool
}

// over reports whether a pool of the plan is no pool any more, unless somebody serves in
// it: it was set to nothing by hand, and the settings do not keep it.
func (c *scene) over(p *scale.PoolPlan) bool {
	return p.Desired == 0 && (c.sleeps == nil || !c.sleeps(p.Key))
}

// sample is all pools now: those of the fleet, of the plan unless they are over, and
// wanted ones. Pools
// beyond scale.MaxPools are left out, the last by key.
func (s *sampler) sample(c *scene) map[scale.Key]scale.Sample {
	sums := gather(c)
	served, known := s.meter.Read(c.traffic)
	traffics := byBase(c, served)
	out := make(map[scale.Key]scale.Sample, len(sums))
	keys := make([]scale.Key, 0, len(sums))
	for key := range sums {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, scale.Key.Compare)
	for _, key := range keys[:min(len(keys), scale.MaxPools)] {
		sum := sums[key]
		one := sum.sample()
		if p, ok := c.plan.Find(key); ok {
			one.Planned = float64(p.Desired)
			one.Pending = max(one.Planned-one.Ready, 0)
		}
		t := traffics[key.Model]
		if t == nil {
			t = &traffic.Served{}
		}
		if known {
			one.Arrivals, one.PromptTokens, one.OutputTokens = t.Arrivals, t.Prompt, t.Output
			one.HitRatio = t.HitRatio()
			one.FirstP50, one.FirstP95 = t.First.Quantile(.5), t.First.Quantile(.95)
			one.BetweenP50, one.BetweenP95 = t.Between.Quantile(.5), t.Between.Quantile(.95)
			one.Queued = queuedFor(key, sum, sums, t.Waiting)
		}
		one.DecodeRate = s.decodeRate(key, sum, &one)
		out[key] = one
	}
	for key := range s.best {
		if _, still := out[key]; !still {
			delete(s.best, key)
		}
	}
	return out
}

// decodeRate is the best that a replica has given, and is not forgotten while this
// node leads: a pool that is idle now is no slower for that.
func (s *sampler) decodeRate(key scale.Key, sum *poolSum, one *scale.Sample) float64 {
	rate := sum.decode.mean()
	if math.IsNaN(rate) && key.Role&fleet.RoleDecode != 0 && one.Ready > 0 && one.OutputTokens > 0 {
		rate = one.OutputTokens / one.Ready
	}
	if best, ok := s.best[key]; ok && !(rate > best) {
		return best
	}
	if rate > 0 {
		s.best[key] = rate
		return rate
	}
	return math.NaN()
}

// poolSum adds up what workers of a pool say. NaN comes of nobody saying anything.
type poolSum struct {
	ready, draining  float64
	running, waiting total
	held, blocks     float64 // KV blocks, of those who say how many are free
	prefill, decode  total   // rates
	tokens           total   // of KV caches
	full             bool    // of those who say, all compute as much as they can
	places           float64 // requests computed at once, of those who say
}

// total adds up what is known.
type total struct {
	sum float64
	n   int
}

func (t *total) add(v float64, ok bool) {
	if ok && v >= 0 {
		t.sum += v
		t.n++
	}
}

// value is the sum, NaN of nothing.
func (t total) value() float64 {
	if t.n == 0 {
		return math.NaN()
	}
	return t.sum
}

func (t total) mean() float64 { return t.value() / float64(t.n) }

// gather adds up the fleet by pool. Workers that drain are counted and no more: what
// they still have burdens nobody else.
func gather(c *scene) map[scale.Key]*poolSum {
	sums := map[scale.Key]*poolSum{}
	of := func(key scale.Key) *poolSum {
		p := sums[key]
		if p == nil {
			p = &poolSum{}
			sums[key] = p
		}
		return p
	}
	for _, key := range c.wanted {
		of(key)
	}
	if c.plan != nil {
		for i := range c.plan.Pools {
			if !c.over(&c.plan.Pools[i]) {
				of(c.plan.Pools[i].Key)
			}
		}
	}
	for i := range c.view.Workers {
		w := &c.view.Workers[i]
		p := of(scale.KeyOf(w))
		if w.Draining {
			p.draining++
			continue
		}
		p.ready++
		p.take(w, c.said)
	}
	for _, p := range sums {
		p.full = p.places > 0 && p.running.sum >= p.places
	}
	return sums
}

// take adds what a worker says of itself.
func (p *poolSum) take(w *fleet.Worker, said *fleet.Samples) {
	if capacity := float64(w.Capacity.KVBlocks) * float64(w.Capacity.BlockTokens); capacity > 0 {
		p.tokens.add(capacity, true)
	}
	s, ok := said.Find(w.ID, w.Epoch)
	if !ok {
		return
	}
	running, knownRunning := s.Stats.Running.Usable()
	p.running.add(running, knownRunning)
	p.waiting.add(s.Stats.Waiting.Usable())
	if knownRunning && w.Capacity.MaxRunning > 0 {
		p.places += float64(w.Capacity.MaxRunning)
	}
	if free, ok := s.Stats.KVBlocksFree.Usable(); ok && w.Capacity.KVBlocks > 0 {
		p.blocks += float64(w.Capacity.KVBlocks)
		p.held += min(max(float64(w.Capacity.KVBlocks)-free, 0), float64(w.Capacity.KVBlocks))
	}
	p.prefill.add(s.Stats.PrefillTokensPerSecond.Usable())
	if step, ok := s.Stats.DecodeStepSeconds.Usable(); ok && step > 0 && knownRunning && running > 0 {
		p.decode.add(running/step, true)
	}
}

// sample is what the workers alone tell. A pool without workers has none that run or
// wait.
func (p *poolSum) sample() scale.Sample {
	s := scale.Unknown()
	s.Ready, s.Draining, s.Pending = p.ready, p.draining, 0
	s.Running, s.Waiting = p.running.value(), p.waiting.value()
	if p.ready == 0 {
		s.Running, s.Waiting = 0, 0
	}
	if p.blocks > 0 {
		s.KVUsage = p.held / p.blocks
	}
	s.PrefillRate, s.KVTokens = p.prefill.mean(), p.tokens.mean()
	return s
}

// byBase adds up traffic by base model: adapters load the workers of theirs.
func byBase(c *scene, served map[string]*traffic.Served) map[string]*traffic.Served {
	out := map[string]*traffic.Served{}
	for name, s := range served {
		base := name // of nobody that serves now: perhaps of a pool without workers
		if serving := c.view.Serving(name); len(serving) > 0 {
			base = c.view.Workers[serving[0]].Models[0]
		}
		if out[base] == nil {
			out[base] = &traffic.Served{}
		}
		out[base].Add(s)
	}
	return out
}

// queuedFor is how many of a model's requests that wait at gateways count for one of
// its pools. Gateways do not know which pool would help: those that are full by their
// own word, or have nobody, would, and all where none is.
func queuedFor(key scale.Key, own *poolSum, sums map[scale.Key]*poolSum, waiting float64) float64 {
	short := func(p *poolSum) bool { return p.full || p.ready == 0 }
	if short(own) {
		return waiting
	}
	for other, p := range sums {
		if other.Model == key.Model && other != key && short(p) {
			return 0
		}
	}
	return waiting
}
