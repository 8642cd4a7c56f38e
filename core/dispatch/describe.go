package dispatch

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/core/mix"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/unit"
)

// Wishes are times that a client asks for; 0 is none.
type Wishes struct {
	First   time.Duration // to the first token
	Between time.Duration // between tokens
}

// describe sets what policies from elsewhere are told of the request, beside what
// every decision needs. The seed follows from the request's id and its attempt, so
// that a decision can be made again.
func (l *Life) describe(q *route.Query, now time.Time) {
	q.Seed = mix.Bits(xxhash.Sum64String(l.req.ID) + uint64(l.placements))
	q.Tenant = l.tenant()
	if l.req.Session != 0 {
		// The same word of another tenant is another conversation.
		q.Session = mix.Bits(l.req.Session^q.Tenant) | 1
	}
	q.Class, q.First, q.Between = uint32(l.req.Class), l.req.Wishes.First, l.req.Wishes.Between
	q.Output, q.Waited = l.expects(), elapsed(l.accepted, now)
}

// tenant is a hash of the tenant, 0 without one.
func (l *Life) tenant() uint64 {
	if l.req.Tenant == "" {
		return 0
	}
	return xxhash.Sum64String(l.req.Tenant)
}

// outputs is the mean output of a model's requests, which fades. The zero value
// has seen none. Of two that learn at once one may be lost.
type outputs struct{ bits atomic.Uint64 }

// fadeOutputs is what the newest output counts.
const fadeOutputs = 1. / 64

func (o *outputs) learn(n unit.Tokens) {
	if n <= 0 {
		return
	}
	mean := math.Float64frombits(o.bits.Load())
	if mean == 0 {
		mean = float64(n)
	}
	o.bits.Store(math.Float64bits(mean + fadeOutputs*(float64(n)-mean)))
}

// unseenOutput bounds what is expected of a request that allows more, where neither
// the model's outputs nor its context are known.
const unseenOutput = 4096

// expects is the output to expect of the request; 0 while nothing is known, and where
// nothing is generated.
func (l *Life) expects() unit.Tokens {
	if l.req.Whole {
		return 0
	}
	return l.model.outputs.expected(l.req.MaxTokens, unit.Tokens(l.model.context.Load()))
}

// expected is the output to expect of a request that asks for at most so many tokens,
// of a model with a context of so many; 0 is unknown of both. What a client writes is
// no expectation by itself: it may be any number.
func (o *outputs) expected(most, context unit.Tokens) unit.Tokens {
	mean := unit.Tokens(math.Float64frombits(o.bits.Load()))
	switch {
	case most <= 0:
		return mean
	case mean > 0:
		return min(mean, most)
	case context > 0:
		return min(most, context)
	}
	return min(most, unseenOutput)
}

// Observation is what became of a request that a worker was chosen for, for those
// who learn from it. It has no text of the request's. NaN is unknown.
type Observation struct {
	Worker  uint64 // [route.KeyOf] the worker that generated, or was to
	Tenant  uint64 // a hash; 0 is none
	Model   uint64 // a hash
	Outcome string // as in [Outcome.Name]

	Prompt, PredictedHit, Hit, Output float64 // tokens; Prompt is an estimate where the engine said nothing
	Queued, First, Between            float64 // seconds; the time to first token includes the queue
	Requests                          float64 // on the worker when the request was sent
	Cost                              float64 // by which the worker was chosen
}

// observation is that of a request that has ended so.
func (l *Life) observation(o *Outcome) Observation {
	nan := math.NaN()
	seen := Observation{
		Worker: route.KeyOf(l.placement.Serve), Tenant: l.tenant(), Model: xxhash.Sum64String(l.model.name), Outcome: o.Name,
		Prompt: float64(l.placement.Prompt), PredictedHit: float64(l.placement.Hit), Hit: nan, Output: nan,
		Queued: l.basis.queued.Seconds(), First: nan, Between: nan, Requests: l.basis.requests, Cost: l.basis.cost,
	}
	if u := o.Usage; u.Known {
		seen.Prompt, seen.Output = float64(u.Prompt), float64(u.Output)
		if u.CachedKnown {
			seen.Hit = float64(min(u.Cached, u.Prompt))
		}
	}
	if o.TTFT > 0 {
		seen.First = o.TTFT.Seconds()
	}
	if gap, ok := l.gap(); ok {
		seen.Between = gap
	}
	return seen
}

// gap is the mean time between tokens in seconds.
func (l *Life) gap() (seconds float64, ok bool) {
	n := max(int(l.watch.Usage.Output), l.watch.Tokens)
	if n <= 1 || l.firstAt.IsZero() || !l.lastAt.After(l.firstAt) {
		return 0, false
	}
	return l.lastAt.Sub(l.firstAt).Seconds() / float64(n-1), true
}

// basis is what a placement was decided by, for an observation.
type basis struct {
	cost, requests float64
	queued         time.Duration
}
