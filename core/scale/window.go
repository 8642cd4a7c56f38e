package scale

import (
	"maps"
	"math"
	"slices"
	"time"
)

// Sample is a pool at one moment. NaN is unknown, in every field.
type Sample struct {
	Planned  float64 // replicas the plan asks for
	Ready    float64 // replicas that serve
	Pending  float64 // replicas that start
	Draining float64 // replicas that drain

	Arrivals     float64 // requests per second
	PromptTokens float64 // prompt tokens per second
	OutputTokens float64 // output tokens per second
	HitRatio     float64 // part of the prompt tokens found in caches

	Queued  float64 // requests that wait at gateways
	Running float64 // requests being computed
	Waiting float64 // requests that wait at workers
	KVUsage float64 // KV blocks held, over those there are

	FirstP50, FirstP95     float64 // time to first token, ms
	BetweenP50, BetweenP95 float64 // time between tokens, ms

	PrefillRate float64 // prompt tokens a second that one replica computes, measured
	DecodeRate  float64 // output tokens a second that one replica has given at its best, measured
	KVTokens    float64 // tokens that one replica's KV cache holds
}

// Unknown is a sample of which nothing is known.
func Unknown() Sample {
	nan := math.NaN()
	return Sample{
		Planned: nan, Ready: nan, Pending: nan, Draining: nan,
		Arrivals: nan, PromptTokens: nan, OutputTokens: nan, HitRatio: nan,
		Queued: nan, Running: nan, Waiting: nan, KVUsage: nan,
		FirstP50: nan, FirstP95: nan, BetweenP50: nan, BetweenP95: nan,
		PrefillRate: nan, DecodeRate: nan, KVTokens: nan,
	}
}

// Limits are what an operator allows of a pool.
type Limits struct {
	Least, Most uint32 // replicas; Most 0 means no bound but the budget
	// First and Between are the wanted time to first token and between tokens; 0 is
	// none.
	First, Between time.Duration
}

// Pool is one pool with its last samples.
type Pool struct {
	Key
	Limits
	Samples []Sample // the newest last; as many as the window has, at least one
}

// Now is the newest sample.
func (p *Pool) Now() *Sample { return &p.Samples[len(p.Samples)-1] }

// Window is what a tick sees.
type Window struct {
	Now      time.Time
	Interval time.Duration // between samples
	Budget   uint32        // replicas of all pools together
	Seed     uint64        // of this tick's random numbers
	Pools    []Pool        // by key
}

// History keeps the last samples of each pool. The zero value keeps none; use
// NewHistory. It belongs to one goroutine.
type History struct {
	length int
	pools  map[Key][]Sample
}

// NewHistory keeps length samples of each pool, at least one.
func NewHistory(length int) *History {
	return &History{length: max(length, 1), pools: map[Key][]Sample{}}
}

// Add takes the samples of one moment. Pools that are not among them are forgotten.
// A pool that is new gets unknown samples before its first.
func (h *History) Add(now map[Key]Sample) {
	for key := range h.pools {
		if _, still := now[key]; !still {
			delete(h.pools, key)
		}
	}
	for key, sample := range now {
		ring := h.pools[key]
		if ring == nil {
			for range h.length - 1 {
				ring = append(ring, Unknown())
			}
		} else if len(ring) == h.length {
			ring = append(ring[:0:0], ring[1:]...)
		}
		h.pools[key] = append(ring, sample)
	}
}

// Keys are the pools that have samples, in order.
func (h *History) Keys() []Key {
	return slices.SortedFunc(maps.Keys(h.pools), Key.Compare)
}

// Of returns a pool's samples, the newest last; nil for a pool not seen. They stay
// as they are.
func (h *History) Of(k Key) []Sample { return h.pools[k] }

// usable is v unless it is unknown or broken, or negative, which nothing here is.
func usable(v float64) (float64, bool) { return v, v >= 0 && !math.IsInf(v, 0) }

// or is v, or instead when v is not usable.
func or(v, instead float64) float64 {
	if _, ok := usable(v); ok {
		return v
	}
	return instead
}

// milliseconds is a wanted time as samples have it; 0 is none.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
