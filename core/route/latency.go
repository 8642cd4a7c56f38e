package route

import (
	"math"
	"time"
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
	rates, steps := reportedOf(c.Rate, usualRate), reportedOf(c.Step, 0)
	n := max(float64(q.Prompt), 1)
	warm, all := math.Inf(1), math.Inf(1)
	for i, h := range c.Hit[:len(cost)] {
		cost[i] = max(c.Queued[i]+n-h, 0) / rates.at(i)
		all = min(all, cost[i])
		if h >= p.Affinity*n {
			warm = min(warm, cost[i])
		}
	}
	sticky := warm-all <= p.MaxPenalty.Seconds()
	for i, ttft := range cost {
		cost[i] = p.weigh(ttft, steps.at(i))
		if sticky && c.Hit[i] < p.Affinity*n {
			cost[i] += 2 * tier
		}
	}
}

// weigh is the cost of a prediction, in seconds.
func (p PredictedLatency) weigh(ttft, tpot float64) float64 {
	first, each := ttft/p.TTFT.Seconds(), tpot/p.TPOT.Seconds()
	used := .8*first + .2*each
	if first <= 1 && each <= 1 {
		return 1 - used
	}
	return tier + min(used, tier)
}
