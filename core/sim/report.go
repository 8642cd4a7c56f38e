package sim

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"
)

// Report is what came of a replay. Times are virtual.
type Report struct {
	Requests int           `json:"requests"`
	Virtual  time.Duration `json:"virtual_ns"` // from the first arrival to the last token
	// HitRatio is the part of all prompt tokens that was found in a cache.
	HitRatio float64 `json:"hit_ratio"`
	// Skew is the busiest worker's computed prompt tokens over the mean of all that
	// compute prompts, and SkewRequests the same of requests.
	Skew         float64 `json:"skew"`
	SkewRequests float64 `json:"skew_requests"`
	First        Times   `json:"ttft"`
	Between      Times   `json:"itl"`
	// Utilisation is the part of the time in which workers computed, by role.
	Utilisation map[string]float64 `json:"utilisation"`
	// Disaggregated is the part of the requests whose prompt another worker computed.
	Disaggregated float64 `json:"disaggregated"`
	// ShadowDiffers is the part of the shadow's decisions that were another worker;
	// NaN without one.
	ShadowDiffers float64 `json:"-"`
	// Worker is by whom each request was served, in the order of the trace: an index
	// over all pools' workers.
	Worker []int32 `json:"-"`
}

// Times is a distribution of times.
type Times struct{ Mean, P50, P99 time.Duration }

// MarshalJSON writes milliseconds, as tables have them.
func (t Times) MarshalJSON() ([]byte, error) {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return json.Marshal(struct {
		Mean float64 `json:"mean_ms"`
		P50  float64 `json:"p50_ms"`
		P99  float64 `json:"p99_ms"`
	}{ms(t.Mean), ms(t.P50), ms(t.P99)})
}

// String is the distribution in milliseconds.
func (t Times) String() string {
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	return fmt.Sprintf("mean %.1f, p50 %.1f, p99 %.1f ms", ms(t.Mean), ms(t.P50), ms(t.P99))
}

// timesOf sorts list.
func timesOf(list []time.Duration) Times {
	if len(list) == 0 {
		return Times{}
	}
	slices.Sort(list)
	var sum time.Duration
	for _, d := range list {
		sum += d
	}
	at := func(q float64) time.Duration { return list[min(int(q*float64(len(list))), len(list)-1)] }
	return Times{sum / time.Duration(len(list)), at(.5), at(.99)}
}

// gaps counts times between tokens, which are many: in buckets 2 % wide.
type gaps struct {
	counts []uint64
	n      uint64
	sum    time.Duration
}

const gapWidth = 1.02

func (g *gaps) add(d time.Duration, times int) {
	at := max(int(math.Log(float64(max(d, 1)))/math.Log(gapWidth)), 0)
	for len(g.counts) <= at {
		g.counts = append(g.counts, 0)
	}
	g.counts[at] += uint64(times)
	g.n += uint64(times)
	g.sum += d * time.Duration(times)
}

func (g *gaps) times() Times {
	if g.n == 0 {
		return Times{}
	}
	at := func(q float64) time.Duration {
		seen := uint64(0)
		for i, n := range g.counts {
			if seen += n; float64(seen) > q*float64(g.n) {
				return time.Duration(math.Pow(gapWidth, float64(i)+.5))
			}
		}
		return 0
	}
	return Times{g.sum / time.Duration(g.n), at(.5), at(.99)}
}

// skew is the greatest over the mean; 1 when there is nothing.
func skew(list []float64) float64 {
	var sum, most float64
	for _, v := range list {
		sum, most = sum+v, max(most, v)
	}
	if sum == 0 {
		return 1
	}
	return most * float64(len(list)) / sum
}

// Differing is the part of the requests that two replays of one trace served by
// different workers. Most follow from the first ones that differ: what either would
// have chosen in the other's place is [Report.ShadowDiffers].
func Differing(a, b *Report) float64 {
	n := min(len(a.Worker), len(b.Worker))
	if n == 0 {
		return 0
	}
	differ := 0
	for i := range n {
		if a.Worker[i] != b.Worker[i] {
			differ++
		}
	}
	return float64(differ) / float64(n)
}
