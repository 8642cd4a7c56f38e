package cost

import (
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/yardmaster/yardmaster/core/unit"
)

// EngineTime predicts how long an engine computes. All coefficients are in
// milliseconds; the zero value is an engine that takes no time. Figures and
// method: the "recommended engine coefficients" fitted to measured kernels of
// one H100 generation, per layer GEMMs, attention and all-reduces.
type EngineTime struct {
	// Prefill of n new tokens behind p cached ones takes
	// max(PrefillFloor, PrefillBase + PrefillToken·n + PrefillSquare·(n² + 2np)).
	PrefillFloor, PrefillBase, PrefillToken, PrefillSquare float64
	// One decode step of B sequences whose contexts sum to C tokens takes
	// DecodeBase + DecodeSequence·B + DecodeContext·C.
	DecodeBase, DecodeSequence, DecodeContext float64
	// StepOverhead is the scheduler's own time per step, RequestOverhead the
	// time per request spent on HTTP, tokenising and hand-over.
	StepOverhead, RequestOverhead float64
}

// PrefillSpan is the part of one step that computes one sequence's prompt.
type PrefillSpan struct {
	New    unit.Tokens // tokens computed in the step
	Cached unit.Tokens // tokens before them whose KV is at hand
}

// Prefill is the time to compute n tokens of one prompt behind p cached tokens,
// alone. It is 0 when n is not positive.
func (t EngineTime) Prefill(n, cached unit.Tokens) time.Duration {
	if n <= 0 {
		return 0
	}
	return milliseconds(t.prefill([]PrefillSpan{{New: n, Cached: cached}}))
}

// Decode is the time of one step that gives each of seqs sequences a token;
// context is the sum of their lengths. It is 0 when seqs is not positive.
func (t EngineTime) Decode(seqs int, context unit.Tokens) time.Duration {
	if seqs <= 0 {
		return 0
	}
	return milliseconds(t.DecodeBase + t.batch(seqs, context))
}

// Step is the time of a step that computes spans and one token for each of
// seqs sequences, StepOverhead included: with both kinds of work the prompt's
// GEMMs carry the decode tokens along. An empty step takes no time.
func (t EngineTime) Step(spans []PrefillSpan, seqs int, context unit.Tokens) time.Duration {
	var ms float64
	switch {
	case len(spans) > 0:
		ms = t.prefill(spans) + t.batch(seqs, context)
	case seqs > 0:
		ms = t.DecodeBase + t.batch(seqs, context)
	default:
		return 0
	}
	return milliseconds(ms + t.StepOverhead)
}

// Request is the time a request costs besides its steps.
func (t EngineTime) Request() time.Duration { return milliseconds(t.RequestOverhead) }

// Validate reports every coefficient that is negative or not a finite number.
func (t EngineTime) Validate() error {
	var faults []error
	for _, c := range []struct {
		name  string
		value float64
	}{
		{"prefill floor", t.PrefillFloor},
		{"prefill base", t.PrefillBase},
		{"prefill per token", t.PrefillToken},
		{"prefill per token squared", t.PrefillSquare},
		{"decode base", t.DecodeBase},
		{"decode per sequence", t.DecodeSequence},
		{"decode per context token", t.DecodeContext},
		{"step overhead", t.StepOverhead},
		{"request overhead", t.RequestOverhead},
	} {
		if !(c.value >= 0) || math.IsInf(c.value, 0) {
			faults = append(faults, errors.New(c.name+" is not a finite time ≥ 0"))
		}
	}
	return errors.Join(faults...)
}

func (t EngineTime) prefill(spans []PrefillSpan) float64 {
	var tokens, attention float64
	for _, s := range spans {
		n, p := float64(s.New), float64(s.Cached)
		tokens += n
		attention += n*n + 2*n*p
	}
	return max(t.PrefillFloor, t.PrefillBase+t.PrefillToken*tokens+t.PrefillSquare*attention)
}

func (t EngineTime) batch(seqs int, context unit.Tokens) float64 {
	if seqs <= 0 {
		return 0
	}
	return t.DecodeSequence*float64(seqs) + t.DecodeContext*float64(context)
}

// longest keeps a hostile coefficient from overflowing a Duration.
const longest = float64(24 * time.Hour / time.Millisecond)

func milliseconds(ms float64) time.Duration {
	return time.Duration(min(ms, longest) * float64(time.Millisecond))
}

// Engine returns the named preset of [EngineNames].
func Engine(name string) (EngineTime, bool) {
	t, ok := engines()[name]
	return t, ok
}

// EngineNames lists the presets, sorted: model, precision, GPUs.
func EngineNames() []string { return slices.Sorted(maps.Keys(engines())) }

// engines holds the fits: worst error 6 % for prefill, 14 % for decode.
func engines() map[string]EngineTime {
	fit := func(floor, a, b, c, d, e, f float64) EngineTime {
		return EngineTime{
			PrefillFloor: floor, PrefillBase: a, PrefillToken: b, PrefillSquare: c,
			DecodeBase: d, DecodeSequence: e, DecodeContext: f,
			StepOverhead: 2, RequestOverhead: 15,
		}
	}
	return map[string]EngineTime{
		"none":                      {},
		"llama-3.1-8b-bf16-h100x1":  fit(6.6, 0.90, .01823, 5.04e-7, 5.88, .0091, 4.30e-5),
		"llama-3.1-8b-fp8-h100x1":   fit(4.0, 0.56, .01378, 3.63e-7, 3.87, .0079, 4.23e-5),
		"llama-3.1-70b-bf16-h100x4": fit(17.6, 3.24, .06195, 5.22e-7, 17.01, .0221, 2.54e-5),
		"llama-3.1-70b-bf16-h100x8": fit(15.4, 4.70, .03990, 1.40e-7, 12.35, .0204, 1.44e-5),
		"qwen3-32b-bf16-h100x2":     fit(17.0, 1.63, .04893, 8.45e-7, 15.14, .0201, 4.33e-5),
	}
}
