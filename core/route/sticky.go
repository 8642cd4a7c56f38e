package route

import (
	"time"

	"github.com/yardmaster/yardmaster/core/native"
)

// Sticky keeps a prompt with the worker that holds most of it until that worker
// is saturated; only then is the prefix computed a second time, and from then on
// its holders share the load. A worker is saturated for a prompt when
//
//   - its load exceeds another's by Hold times the tokens that would be computed
//     again there, times the share of the prompt that it holds, or by what the fastest
//     worker computes in MaxWait;
//   - the prompt's own prefix crowds it: it has Crowd requests more than the
//     idlest worker, less one for every two that the idlest has, and half of all
//     it has share the prefix;
//   - it has more than 4·(m+4) requests, where m is the idlest worker's.
//
// Load is in tokens: those that queue, and RequestTokens for each request. A
// prompt that nobody holds goes where load is least; where it is equal, as it is
// when all are idle, to the worker that was given the least work lately, so that
// caches fill evenly. Where prefill rates are known the costs of slower workers
// are larger in proportion. Why the numbers are what they are is in DESIGN.md.
type Sticky struct {
	// Hold is how much queueing, in tokens, a token held is worth where all of the prompt
	// is held; 0 means 80.
	Hold float64
	// Crowd is described above; 0 means 5.
	Crowd float64
	// RequestTokens is what a request in flight counts as, in prompt tokens; 0
	// means 128.
	RequestTokens float64
	// Balance bounds what the mean share of recent work counts as: the tokens that
	// the worker's cache would gain, but no more than these; 0 means 2048.
	Balance float64
	// MaxWait bounds the queueing that affinity is worth; 0 means 18 s. Where no
	// prefill rate is measured it is taken to be 15,928 tokens/s.
	MaxWait time.Duration
}

// Name is "sticky".
func (Sticky) Name() string { return "sticky" }

// usualRate is a prefill rate for when none is measured, in tokens/s.
const usualRate = 15_928

func (p Sticky) withDefaults() Sticky {
	if p.Hold == 0 {
		p.Hold = 80
	}
	if p.Crowd == 0 {
		p.Crowd = 5
	}
	if p.RequestTokens == 0 {
		p.RequestTokens = 128
	}
	if p.Balance == 0 {
		p.Balance = 2048
	}
	if p.MaxWait == 0 {
		p.MaxWait = 18 * time.Second
	}
	return p
}

// Tune sets the parameters.
func (p Sticky) Tune(s *native.Params) Policy {
	s.Number(&p.Hold, native.Param{Name: "hold", Default: 80, Least: .001, Most: 1e6, Help: "queueing, in tokens, that a token held is worth where all of the prompt is held"})
	s.Number(&p.Crowd, native.Param{Name: "crowd", Default: 5, Least: .001, Most: 1e6, Help: "requests more than the idlest worker's that are too many for one prefix"})
	s.Number(&p.RequestTokens, native.Param{Name: "request_tokens", Default: 128, Least: .001, Most: 1e6, Help: "what a request in flight counts as, in prompt tokens"})
	s.Number(&p.Balance, native.Param{Name: "balance", Default: 2048, Least: .001, Most: 1e9, Help: "most tokens that the mean share of recent work counts as"})
	s.Seconds(&p.MaxWait, native.Param{Name: "max_wait_seconds", Default: 18, Least: .001, Most: 3600, Help: "queueing that affinity is worth at most"})
	return p
}

// Score is, in tokens,
//
//	U + RequestTokens·r + (n−h*) + min(Hold·(h*/n)·(h*−h), tau) + min(Balance, n−h)·share
//
// times mean rate over own rate, where h* is the longest hit at a worker that is
// not crowded, and tau what the fastest worker computes in MaxWait. Crowded
// workers come after all others.
func (p Sticky) Score(q *Query, c *Columns, cost []float64) {
	p = p.withDefaults()
	n := max(float64(q.Prompt), 1)
	known := c.rates
	if !known.surveyed {
		known = ratesOf(c.Rate)
	}
	crowds := p.crowds(c.Requests)
	peak := known.peak
	if peak == 0 {
		peak = usualRate
	}
	longest := crowds.longestOf(c.Hit, c.Requests, c.Siblings)
	w := weights{
		hold: p.Hold * longest / n, each: p.RequestTokens, balance: p.Balance, prompt: n,
		longest: longest, tau: peak * p.MaxWait.Seconds(),
	}
	w.weigh(c.Hit, c.Queued, c.Requests, c.Share, cost)
	if !known.equal {
		for i, rate := range c.Rate[:len(cost)] {
			if rate > 0 && rate != known.mean {
				cost[i] *= known.mean / rate
			}
		}
	}
	crowds.putBehind(cost, c.Requests, c.Siblings, behind)
}

// behind is more than any cost of a worker that is not crowded.
const behind = 1e12

// minCrowd is how many requests more than the idlest's are a crowd at least.
const minCrowd = 2

// crowds says who is crowded and should take no more of this prefix while there are
// others: see [crowded].
type crowds struct{ few, many float64 }

// The busier the idlest, the less it takes: what crowds a worker then has been
// copied to the others already, and returning to the first would only add to its
// queue.
func (p Sticky) crowds(requests []float64) crowds {
	idlest := leastOf(requests)
	return crowds{idlest + max(p.Crowd-idlest/2, minCrowd), 4 * (idlest + 4)}
}
