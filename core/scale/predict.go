package scale

import (
	"math"
	"slices"
)

// Predictor says what a series will be one step on. Values that are not known are
// passed over.
type Predictor interface {
	// Next predicts the value after the last of series, the newest last. ok is false
	// when nothing is known.
	Next(series []float64) (v float64, ok bool)
}

// Constant predicts the last value, for steady traffic.
type Constant struct{}

// Next is the last known value.
func (Constant) Next(series []float64) (float64, bool) {
	for _, v := range slices.Backward(series) {
		if v, ok := usable(v); ok {
			return v, true
		}
	}
	return 0, false
}

// Trend follows level and slope by double exponential smoothing, for traffic that
// rises or falls. Source: Holt's linear method.
type Trend struct {
	Level, Slope float64 // weights of the newest value; 0 means 0.5 and 0.3
}

// Next is level plus slope, not below 0.
func (t Trend) Next(series []float64) (float64, bool) {
	alpha, beta := or0(t.Level, .5), or0(t.Slope, .3)
	var level, slope float64
	seen := 0
	for _, x := range series {
		x, ok := usable(x)
		if !ok {
			continue
		}
		switch seen {
		case 0:
			level = x
		case 1:
			level, slope = x, x-level
		default:
			was := level
			level = alpha*x + (1-alpha)*(level+slope)
			slope = beta*(level-was) + (1-beta)*slope
		}
		seen++
	}
	return max(level+slope, 0), seen > 0
}

// Kalman filters a local level and slope, for bursts: it believes a jump the more,
// the noisier the series was before. Source: the local linear trend model.
type Kalman struct {
	// Drift and Noise are the variances of the level's steps and of a measurement, as
	// shares of the series' mean squared; 0 means 0.05 and 0.02.
	Drift, Noise float64
}

// Next is the filtered level and slope, not below 0.
func (k Kalman) Next(series []float64) (float64, bool) {
	mean, n := 0.0, 0.0
	for _, x := range series {
		if x, ok := usable(x); ok {
			mean, n = mean+x, n+1
		}
	}
	if n == 0 {
		return 0, false
	}
	scale := max(mean/n*mean/n, 1e-12)
	q, r := or0(k.Drift, .05)*scale, or0(k.Noise, .02)*scale
	level, slope := math.NaN(), 0.0
	// The state's covariance: of level, of both, of slope.
	p11, p12, p22 := r, 0.0, q
	for _, x := range series {
		x, ok := usable(x)
		if !ok {
			continue
		}
		if math.IsNaN(level) {
			level = x
			continue
		}
		level += slope
		p11, p12, p22 = p11+2*p12+p22+q, p12+p22, p22+q/4
		gain1, gain2, miss := p11/(p11+r), p12/(p11+r), x-level
		level, slope = level+gain1*miss, slope+gain2*miss
		p22 -= gain2 * p12
		p11, p12 = (1-gain1)*p11, (1-gain1)*p12
	}
	return max(level+slope, 0), true
}
