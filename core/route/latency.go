package route

import (
	"math"
	"time"

	"github.com/yardmaster/yardmaster/core/native"
)

// PredictedLatency takes the worker that just meets the targets, so that the
// others keep room for what is harder; where none meets them, the one that misses
// them least. It predicts, in seconds,
//
//	TTFT = (U + n − h)/rate     TPOT = the worker's decode step
//
// and compares 0.8·(1 − TTFT/target) + 0.2·(1 − TPOT/target), the headroom. Both
// targets must be met; the least headroom wins then, and the most otherwise.
// Workers that hold Affinity of the prompt come first, unless waiting for the best
// of them takes MaxPenalty longer than the best of all. Source: the latency
// scorer, tier filter and affinity filter of the llm-d router, which trains a
// model where this one takes what workers measured.
//
// Unmeasured rates are the mean of those measured, else 15,928 tokens/s;
// unmeasured steps the mean, else 0.
type PredictedLatency struct {
	// TTFT and TPOT are the targets; 0 means 2 s and 100 ms, MLPerf's limits for
	// servers of an 8B model.
	TTFT, TPOT time.Duration
	// Affinity is described above; 0 means 0.8.
	Affinity float64
	// MaxPenalty is described above; 0 means 5 s.
	MaxPenalty time.Duration
}

// Name is "predicted-latency".
func (PredictedLatency) Name() string { return "predicted-latency" }

// Needs is what the policy reads of what is filled on demand.
func (PredictedLatency) Needs() Needs { return NeedsStep }

// Tune sets the parameters.
func (p PredictedLatency) Tune(s *native.Params) Policy {
	s.Seconds(&p.TTFT, native.Param{Name: "ttft_seconds", Default: 2, Least: .001, Most: 3600, Help: "wanted time to first token"})
	s.Seconds(&p.TPOT, native.Param{Name: "tpot_seconds", Default: .1, Least: .0001, Most: 3600, Help: "wanted time per output token"})
	s.Number(&p.Affinity, native.Param{Name: "affinity", Default: .8, Least: .001, Most: 1, Help: "share of the prompt that a worker must hold to come first"})
	s.Seconds(&p.MaxPenalty, native.Param{Name: "max_penalty_seconds", Default: 5, Least: .001, Most: 3600, Help: "how much longer than the best of all those may take"})
	return p
}

func (p PredictedLatency) withDefaults() PredictedLatency {
	if p.TTFT == 0 {
		p.TTFT = 2 * time.Second
	}
	if p.TPOT == 0 {
		p.TPOT = 100 * time.Millisecond
	}
	if p.Affinity == 0 {
		p.Affinity = .8
	}
	if p.MaxPenalty == 0 {
		p.MaxPenalty = 5 * time.Second
	}
	return p
}

// tier is more than any weighted latency in units of its target.
const tier = 1e9

// Score is the headroom where the targets are met, and what is used of the targets
// above that where they are not; workers without affinity come after those with.
func (p PredictedLatency) Score(q *Query, c *Columns, cost []float64) {
	p = p.withDefaults()
	rates, steps := c.measuredRates(), reportedOf(c.Step, 0)
	n := max(float64(q.Prompt), 1)
	affine := p.Affinity * n
	warm, all := math.Inf(1), math.Inf(1)
	queued := c.Queued[:len(cost)]
	for i, h := range c.Hit[:len(cost)] {
		left := queued[i] + n - h
		if left < 0 {
			left = 0
		}
		ttft := left / rates.at(i)
		cost[i] = ttft
		if ttft < all {
			all = ttft
		}
		if h >= affine && ttft < warm {
			warm = ttft
		}
	}
	sticky := warm-all <= p.MaxPenalty.Seconds()
	t := targets{p.TTFT.Seconds(), p.TPOT.Seconds()}
	for i, h := range c.Hit[:len(cost)] {
		cost[i] = t.weigh(cost[i], steps.at(i))
		if sticky && h < affine {
			cost[i] += 2 * tier
		}
	}
}

// targets are the times wanted, in seconds.
type targets struct{ ttft, tpot float64 }

// weigh is the cost of a prediction, in seconds.
func (t targets) weigh(ttft, tpot float64) float64 {
	first, each := ttft/t.ttft, tpot/t.tpot
	used := .8*first + .2*each
	switch {
	case first <= 1 && each <= 1:
		return 1 - used
	case used < tier:
		return tier + used
	}
	return 2 * tier
}
