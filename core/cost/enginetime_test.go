package cost

import (
	"math"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/unit"
)

// The table's own sample points for an 8B model on one GPU.
func TestEngineTimeSamplePoints(t *testing.T) {
	e, ok := Engine("llama-3.1-8b-bf16-h100x1")
	if !ok {
		t.Fatal("preset missing")
	}
	for _, p := range []struct {
		n  unit.Tokens
		ms float64
	}{{512, 10.5}, {2048, 40.0}, {8192, 189}} {
		got := float64(e.Prefill(p.n, 0)) / float64(time.Millisecond)
		if math.Abs(got-p.ms)/p.ms > .05 {
			t.Errorf("Prefill(%d) = %.1f ms, want about %.1f", p.n, got, p.ms)
		}
	}
	for _, p := range []struct {
		seqs int
		ms   float64
	}{{1, 5.7}, {32, 9.2}, {128, 17.5}} {
		got := float64(e.Decode(p.seqs, unit.Tokens(2048*p.seqs))) / float64(time.Millisecond)
		if math.Abs(got-p.ms)/p.ms > .09 {
			t.Errorf("Decode(%d) = %.1f ms, want about %.1f", p.seqs, got, p.ms)
		}
	}
}

func TestEngineTime(t *testing.T) {
	e := EngineTime{
		PrefillFloor: 5, PrefillBase: 1, PrefillToken: .01, PrefillSquare: 1e-6,
		DecodeBase: 10, DecodeSequence: .5, DecodeContext: .001, StepOverhead: 2,
	}
	ms := func(f float64) time.Duration { return time.Duration(f * float64(time.Millisecond)) }
	tests := []struct {
		name string
		got  time.Duration
		want time.Duration
	}{
		{"nothing to prefill", e.Prefill(0, 100), 0},
		{"floor", e.Prefill(10, 0), ms(5)},
		{"cold", e.Prefill(1000, 0), ms(12)},
		{"behind a cached prefix", e.Prefill(1000, 500), ms(13)},
		{"decode", e.Decode(4, 1000), ms(13)},
		{"no sequences", e.Decode(0, 1000), 0},
		{"empty step", e.Step(nil, 0, 0), 0},
		{"mixed step", e.Step([]PrefillSpan{{New: 1000}}, 4, 1000), ms(17)},
		{"decode step", e.Step(nil, 4, 1000), ms(15)},
		{"two prompts share the base", e.Step([]PrefillSpan{{New: 500}, {New: 500}}, 0, 0), ms(13.5)},
		{"zero engine", EngineTime{}.Step([]PrefillSpan{{New: 1 << 20}}, 9, 1<<20), 0},
	}
	for _, tt := range tests {
		if d := tt.got - tt.want; d > time.Microsecond || d < -time.Microsecond {
			t.Errorf("%s: %v, want %v", tt.name, tt.got, tt.want)
		}
	}
}

func TestEngineTimeValidate(t *testing.T) {
	for _, name := range EngineNames() {
		if e, _ := Engine(name); e.Validate() != nil {
			t.Errorf("%s: %v", name, e.Validate())
		}
	}
	for _, bad := range []float64{-1, math.NaN(), math.Inf(1)} {
		if (EngineTime{DecodeBase: bad}).Validate() == nil {
			t.Errorf("%v accepted", bad)
		}
	}
}
