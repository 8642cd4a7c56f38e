// Command go is the policy queue-and-kv: it grows a pool when requests wait or KV blocks run short, and shrinks
// it by one when neither is so. Both are means over the samples. While replicas start,
// the pool does not change: what they will take over is not seen yet.
package main

import (
	"math"

	ym "github.com/yardmaster/yardmaster/plugins-sdk/go"
)

// The reasons.
const (
	hold = iota
	byQueue
	byKV
	idle
	starting
	unknown
)

func tick(r *ym.PoolsRequest, t *table, p *params) bool {
	n := int(r.Samples)
	if n == 0 {
		return false
	}
	for pool := range int(r.Pools) {
		t.Desired[pool], t.Reason[pool] = decide(t, p, pool*n, pool*n+n)
	}
	return true
}

func decide(t *table, p *params, from, to int) (desired, reason uint32) {
	replicas := orZero(t.Replicas[to-1])
	serving := max(orZero(t.Ready[to-1]), 1)
	queue := (mean(t.Queued[from:to]) + mean(t.Waiting[from:to])) / serving
	kv := mean(t.KvUsage[from:to])

	// How far above its mark each signal is; comparisons with NaN are false.
	overQueue, overKV := queue/p.QueueHigh, kv/p.KvHigh
	switch {
	case math.IsNaN(queue) && math.IsNaN(kv):
		return uint32(replicas), unknown
	case orZero(t.Pending[to-1]) > 0:
		return uint32(replicas), starting
	case overKV > 1 && !(overQueue > overKV):
		return grown(replicas, serving, overKV), byKV
	case overQueue > 1:
		return grown(replicas, serving, overQueue), byQueue
	case queue < p.QueueLow && kv < p.KvLow && replicas > 0:
		return uint32(replicas - 1), idle
	}
	return uint32(replicas), hold
}

// grown is at most double, and no less than there are.
func grown(replicas, serving, factor float64) uint32 {
	return uint32(max(math.Ceil(serving*min(factor, 2)), replicas))
}

// mean is that of the known values; NaN without one.
func mean(values []float32) float64 {
	sum, known := 0.0, 0.0
	for _, v := range values {
		if ym.Known(v) {
			sum += float64(v)
			known++
		}
	}
	return sum / known
}

func orZero(v float32) float64 {
	if ym.Known(v) {
		return float64(v)
	}
	return 0
}
