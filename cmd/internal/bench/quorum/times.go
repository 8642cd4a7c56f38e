package quorum

import (
	"context"
	"slices"
	"time"
)

// durations are times that something took.
type durations []time.Duration

// quantile is the duration below which the share q lies, in milliseconds; 0 when
// there are none.
func (d durations) quantile(q float64) float64 {
	if len(d) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(d))
	return float64(sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]) / float64(time.Millisecond)
}

func (d durations) median() float64 { return d.quantile(0.5) }

func (d durations) longest() float64 { return d.quantile(1) }

// timed does n things one after the other and takes the time of each.
func timed(ctx context.Context, n int, do func(i int) error) (durations, error) {
	all := make(durations, 0, n)
	for i := range n {
		begin := time.Now()
		if err := do(i); err != nil {
			return nil, err
		}
		all = append(all, time.Since(begin))
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return all, nil
}
