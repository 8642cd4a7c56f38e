package scale

import (
	"fmt"
	"math"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/native"
)

// SLA plans for the traffic that it predicts, to keep the wanted times. Prompts are
// computed by
//
//	ceil(predicted prompt tokens/s · min(1, c) / prefill rate)
//
// replicas, where c, the time to first token over the one expected of a prompt that
// nobody cached and nothing delays, is less than 1 where caches help. Output needs
//
//	ceil(predicted output tokens/s / rate at the wanted time between tokens)
//
// where that time is corrected by what is measured over what is expected. A pool of
// both roles needs the sum. Without a measured rate a pool keeps its size. Source:
// the SLA planner of Dynamo, whose profile of a replica is replaced by what it
// measures of itself.
type SLA struct {
	// Predict is the predictor of rates; nil means [Trend].
	Predict Predictor
	// Room is the share of a rate that is planned with; 0 means 0.85.
	Room float64
}

// Name is "sla".
func (*SLA) Name() string { return "sla" }

// Tune makes one with other parameters.
func (p *SLA) Tune(s *native.Params) Policy {
	out := SLA{Predict: p.Predict}
	s.Number(&out.Room, native.Param{Name: "room", Default: .85, Least: .001, Most: 1, Help: "share of a replica's rate that is planned with"})
	return &out
}

// Tick is the rule of the type.
func (p *SLA) Tick(w *Window, want []Want) {
	for i := range w.Pools {
		want[i] = p.pool(&w.Pools[i])
	}
}

func (p *SLA) pool(pool *Pool) Want {
	s := pool.Now()
	if sleeping, ok := asleep(s); ok {
		return sleeping
	}
	var needed float64
	var reason string
	if pool.Role&fleet.RolePrefill != 0 {
		n, ok := p.prefill(pool)
		if !ok {
			return keep("prefill rate or traffic unknown")
		}
		needed, reason = n, fmt.Sprintf("prompts need %.2f", n)
	}
	if pool.Role&fleet.RoleDecode != 0 {
		n, ok := p.decode(pool)
		if !ok {
			return keep("decode rate or traffic unknown")
		}
		needed, reason = needed+n, join(reason, fmt.Sprintf("output needs %.2f", n))
	}
	return Want{Replicas: whole(needed), Reason: reason}
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + ", " + b
}

func (p *SLA) prefill(pool *Pool) (replicas float64, ok bool) {
	s := pool.Now()
	rate, okRate := usable(s.PrefillRate)
	load, okLoad := p.predict(pool, func(s *Sample) float64 { return s.PromptTokens })
	if !okRate || !okLoad || rate == 0 {
		return 0, false
	}
	return load * min(1, firstCorrection(s)) / (rate * or0(p.Room, .85)), true
}

// firstCorrection is the time to first token over the one expected of an average
// prompt on a free replica without a cache; 1 when that is unknown.
func firstCorrection(s *Sample) float64 {
	took, ok := usable(s.FirstP50)
	expected := promptOf(s) / or(s.PrefillRate, 0) * 1000
	if !ok || took == 0 || !(expected > 0) || math.IsInf(expected, 0) {
		return 1
	}
	return took / expected
}

func (p *SLA) decode(pool *Pool) (replicas float64, ok bool) {
	s := pool.Now()
	rate, okRate := usable(s.DecodeRate)
	load, okLoad := p.predict(pool, func(s *Sample) float64 { return s.OutputTokens })
	if !okRate || !okLoad || rate == 0 {
		return 0, false
	}
	// A replica's throughput grows with its batch, and so does the time between
	// tokens: what is too slow by a factor has too large a batch by about that.
	wanted, got := milliseconds(pool.Between), s.BetweenP50
	if got, ok := usable(got); ok && wanted > 0 && got > wanted {
		rate *= wanted / got
	}
	return load / (rate * or0(p.Room, .85)), true
}

// predict applies the predictor to one figure of the pool's samples.
func (p *SLA) predict(pool *Pool, of func(*Sample) float64) (float64, bool) {
	series := make([]float64, len(pool.Samples))
	for i := range pool.Samples {
		series[i] = of(&pool.Samples[i])
	}
	predictor := p.Predict
	if predictor == nil {
		predictor = Trend{}
	}
	return predictor.Next(series)
}
