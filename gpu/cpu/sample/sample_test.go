package sample

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

var (
	inf = float32(math.Inf(1))
	nan = float32(math.NaN())
)

func sampler(t testing.TB, p Params, vocab int, prompt ...int32) *Sampler {
	t.Helper()
	s, err := New(p, vocab, prompt)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestGreedy(t *testing.T) {
	tests := []struct {
		name     string
		logits   []float32
		suppress []int32
		want     int32
		err      error
	}{
		{"largest", []float32{1, 3, 2}, nil, 1, nil},
		{"first of equals", []float32{1, 3, 3}, nil, 1, nil},
		{"not a number is impossible", []float32{nan, -5, nan}, nil, 1, nil},
		{"infinite", []float32{1, inf, inf}, nil, 1, nil},
		{"suppressed", []float32{1, 3, 2}, []int32{1}, 2, nil},
		{"suppressed outside the vocabulary", []float32{1, 3, 2}, []int32{-1, 99}, 1, nil},
		{"nothing possible", []float32{nan, -inf}, nil, 0, ErrNoToken},
		{"all suppressed", []float32{1, 2}, []int32{0, 1}, 0, ErrNoToken},
		{"empty", nil, nil, 0, ErrNoToken},
	}
	for _, tt := range tests {
		for _, temperature := range []float32{0, 1e-40, 1e-6} { // the last two are as good as zero
			t.Run(tt.name, func(t *testing.T) {
				var scratch Scratch
				got, err := sampler(t, Params{Temperature: temperature}, len(tt.logits)).Sample(slices.Clone(tt.logits), tt.suppress, &scratch)
				if tt.name == "first of equals" && temperature > 0 && got.Token == 2 {
					return // equals stay equal
				}
				if got.Token != tt.want || !errors.Is(err, tt.err) {
					t.Errorf("temperature %v: token %d, error %v; want %d, %v", temperature, got.Token, err, tt.want, tt.err)
				}
			})
		}
	}
}

func TestPenaltiesAndBias(t *testing.T) {
	tests := []struct {
		name   string
		p      Params
		prompt []int32
		logits []float32
		want   []int32 // greedy choices with the same logits each time
	}{
		{"bias", Params{LogitBias: map[int32]float32{2: 5}}, nil, []float32{1, 3, 2}, []int32{2, 2}},
		{"a bias of -100 forbids", Params{LogitBias: map[int32]float32{1: -100}}, nil, []float32{1, 3, 2}, []int32{2}},
		{"presence counts once", Params{PresencePenalty: 1}, nil, []float32{0, 1.5, 1}, []int32{1, 2, 1, 1}},
		{"frequency adds up", Params{FrequencyPenalty: 1}, nil, []float32{-9, 2.5, 1}, []int32{1, 1, 2, 1}},
		{"presence spares the prompt", Params{PresencePenalty: 1}, []int32{1}, []float32{0, 1.5, 1}, []int32{1}},
		{"repetition does not", Params{RepetitionPenalty: 2}, []int32{1}, []float32{0, 1.5, 1}, []int32{2}},
		{"repetition of negative logits", Params{RepetitionPenalty: 2}, []int32{0}, []float32{-1, -1.5}, []int32{1}},
		{"a prompt token outside the vocabulary", Params{RepetitionPenalty: 2}, []int32{99, -1}, []float32{-1, -1.5}, []int32{0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := sampler(t, tt.p, len(tt.logits), tt.prompt...)
			var scratch Scratch
			var got []int32
			for range tt.want {
				c, err := s.Sample(slices.Clone(tt.logits), nil, &scratch)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, c.Token)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("tokens %v, want %v", got, tt.want)
			}
		})
	}
}

// reference is the distribution that the parameters describe, by sorting.
func reference(p Params, logits []float32) []float64 {
	prob := make([]float64, len(logits))
	order := make([]int, len(logits))
	top := float64(slices.Max(logits))
	for i, l := range logits {
		order[i] = i
		prob[i] = math.Exp((float64(l) - top) / float64(p.Temperature))
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case logits[a] > logits[b]:
			return -1
		case logits[a] < logits[b]:
			return 1
		}
		return 0
	})
	keep := len(order)
	for keep > 1 && prob[order[keep-1]] < float64(p.MinP) {
		keep--
	}
	if p.TopK > 0 {
		keep = min(keep, p.TopK)
	}
	if p.TopP > 0 && p.TopP < 1 {
		whole, sum := 0.0, 0.0
		for _, i := range order[:keep] {
			whole += prob[i]
		}
		for n, i := range order[:keep] {
			if sum += prob[i]; sum >= float64(p.TopP)*whole {
				keep = n + 1
				break
			}
		}
	}
	out := make([]float64, len(logits))
	whole := 0.0
	for _, i := range order[:keep] {
		whole += prob[i]
	}
	for _, i := range order[:keep] {
		out[i] = prob[i] / whole
	}
	return out
}

// kept is the distribution that draw draws from.
func kept(s *Sampler, logits []float32) []float64 {
	var scratch Scratch
	s.draw(logits, &scratch)
	out := make([]float64, len(logits))
	whole := 0.0
	for _, w := range scratch.weight {
		whole += float64(w)
	}
	for i, w := range scratch.weight {
		out[i] = float64(w) / whole
	}
	return out
}

func TestDistributionEqualsSorting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Params{
			Temperature: rapid.Float32Range(.05, 3).Draw(t, "temperature"),
			TopK:        rapid.IntRange(0, 60).Draw(t, "k"),
			TopP:        rapid.SampledFrom([]float32{0, .01, .3, .5, .9, .99, 1}).Draw(t, "p"),
			MinP:        rapid.SampledFrom([]float32{0, 0, .001, .1, 1}).Draw(t, "min p"),
		}
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "logits"), 0))
		logits := make([]float32, rapid.IntRange(1, 400).Draw(t, "vocab"))
		spread := rapid.SampledFrom([]float64{.1, 1, 5}).Draw(t, "spread")
		for i := range logits {
			logits[i] = float32(rnd.NormFloat64() * spread)
			if rnd.IntN(4) == 0 && i > 0 {
				logits[i] = logits[rnd.IntN(i)] // equals
			}
		}
		s, err := New(p, len(logits), nil)
		if err != nil {
			t.Fatal(err)
		}
		got := kept(s, logits)
		var why []string
		for _, q := range edges(p) {
			fault := differs(got, reference(q, logits))
			if fault == "" {
				return
			}
			why = append(why, fault)
		}
		t.Fatal(why)
	})
}

// edges are parameters that single precision may not tell from p: a cut that is on
// the very edge falls to one side or the other.
func edges(p Params) []Params {
	out := []Params{p}
	for _, by := range []float32{1 - 1e-5, 1 + 1e-5} {
		q := p
		q.MinP *= by
		out = append(out, q)
	}
	for _, q := range slices.Clone(out) {
		for _, by := range []float32{1 - 1e-5, 1 + 1e-5} {
			if q.TopP < 1 {
				q.TopP = p.TopP * by
				out = append(out, q)
			}
		}
	}
	return out
}

// differs says how one distribution is not the other. What is less likely than one
// in 10¹² need not be kept.
func differs(got, want []float64) string {
	for i := range got {
		switch {
		case want[i] < 1e-12 && got[i] < 2e-12:
		case got[i] == 0 || want[i] == 0:
			return fmt.Sprintf("token %d is kept or dropped wrongly: %v, want %v", i, got[i], want[i])
		case math.Abs(got[i]-want[i]) > 2e-2*want[i]+1e-6:
			return fmt.Sprintf("token %d has probability %v, want %v", i, got[i], want[i])
		}
	}
	return ""
}

func TestFrequenciesFollowTheDistribution(t *testing.T) {
	logits := []float32{1, 2, 0, nan, 1.5, -inf, 2}
	p := Params{Temperature: .8, TopK: 4, Seed: 3}
	s := sampler(t, p, len(logits))
	clean := slices.Clone(logits)
	clean[3] = -inf
	want := reference(p, clean)
	const n = 200_000
	got := make([]float64, len(logits))
	var scratch Scratch
	for range n {
		c, err := s.Sample(logits, nil, &scratch)
		if err != nil {
			t.Fatal(err)
		}
		got[c.Token] += 1. / n
	}
	for i := range got {
		if sd := math.Sqrt(want[i] * (1 - want[i]) / n); math.Abs(got[i]-want[i]) > 5*sd {
			t.Errorf("token %d drawn with frequency %v, want %v ± %v", i, got[i], want[i], 5*sd)
		}
	}
}

func TestSeedDecides(t *testing.T) {
	draw := func(seed uint64) (out []int32) {
		s := sampler(t, Params{Temperature: 1, Seed: seed}, 100)
		var scratch Scratch
		for range 50 {
			c, _ := s.Sample(make([]float32, 100), nil, &scratch)
			out = append(out, c.Token)
		}
		return out
	}
	if a, b := draw(1), draw(1); !slices.Equal(a, b) {
		t.Errorf("one seed, two texts: %v, %v", a, b)
	}
	if a, b := draw(1), draw(2); slices.Equal(a, b) {
		t.Errorf("two seeds, one text: %v", a)
	}
	// Fixed for ever: clients keep seeds.
	if got, want := draw(1)[:5], []int32{74, 37, 43, 95, 20}; !slices.Equal(got, want) {
		t.Errorf("seed 1 draws %v, want %v", got, want)
	}
}

func TestLogProbsAreTheModels(t *testing.T) {
	logits := []float32{1, 3, nan, 2, 3, -inf}
	var whole float64
	for _, l := range []float64{1, 3, 2, 3} {
		whole += math.Exp(l)
	}
	lp := func(l float64) float32 { return float32(l - math.Log(whole)) }
	// The bias moves the choice, not what is reported.
	p := Params{LogProbs: true, TopLogProbs: 5, LogitBias: map[int32]float32{0: 50}}
	var scratch Scratch
	got, err := sampler(t, p, len(logits)).Sample(slices.Clone(logits), []int32{1}, &scratch)
	if err != nil {
		t.Fatal(err)
	}
	want := []TokenLogProb{{1, lp(3)}, {4, lp(3)}, {3, lp(2)}, {0, lp(1)}}
	if got.Token != 0 || math.Abs(float64(got.LogProb-lp(1))) > 1e-5 || len(got.Top) != len(want) {
		t.Fatalf("got %+v, want token 0 at %v and %v", got, lp(1), want)
	}
	for i, w := range want {
		if g := got.Top[i]; g.Token != w.Token || math.Abs(float64(g.LogProb-w.LogProb)) > 1e-5 {
			t.Errorf("top %d is %+v, want %+v", i, g, w)
		}
	}
}

func TestValidateReportsEverything(t *testing.T) {
	p := Params{
		Temperature: nan, TopK: -1, TopP: 1.5, MinP: nan, RepetitionPenalty: -1, PresencePenalty: 3, FrequencyPenalty: -inf,
		TopLogProbs: 1000, LogitBias: map[int32]float32{7: inf},
	}
	err := p.Validate(5)
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 9 || !errors.Is(err, ErrParams) {
		t.Errorf("Validate = %v, want 9 faults", err)
	}
	if err := (&Params{}).Validate(5); err != nil {
		t.Errorf("the zero value: %v", err)
	}
}

func TestExp(t *testing.T) {
	worst := 0.0
	for x := float32(0); x >= -80; x -= .0137 {
		want := math.Exp(float64(x))
		worst = max(worst, math.Abs(float64(exp(x))-want)/want)
	}
	if worst > 2.5e-7 || exp(0) != 1 || exp(-81) != 0 || exp(-inf) != 0 {
		t.Errorf("relative error %v, exp(0) = %v", worst, exp(0))
	}
}

// Whatever the logits, a token of the vocabulary comes out, or ErrNoToken.
func FuzzSample(f *testing.F) {
	f.Add([]byte{0, 0, 0x80, 0x7f, 0, 0, 0xc0, 0xff}, float32(1), 2, float32(.5), float32(.1))
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8}, float32(1e-45), 0, float32(1), float32(0))
	f.Fuzz(func(t *testing.T, raw []byte, temperature float32, k int, topP, minP float32) {
		logits := make([]float32, len(raw)/4)
		for i := range logits {
			logits[i] = math.Float32frombits(uint32(raw[4*i]) | uint32(raw[4*i+1])<<8 | uint32(raw[4*i+2])<<16 | uint32(raw[4*i+3])<<24)
		}
		s, err := New(Params{Temperature: temperature, TopK: k, TopP: topP, MinP: minP, RepetitionPenalty: 1.5, LogProbs: true, TopLogProbs: 3}, len(logits), nil)
		if err != nil {
			return
		}
		possible := argmax(logits) >= 0
		var scratch Scratch
		for range 3 {
			in := slices.Clone(logits)
			c, err := s.Sample(in, nil, &scratch)
			if err != nil {
				if !errors.Is(err, ErrNoToken) {
					t.Fatal(err)
				}
				return
			}
			if !possible || int(c.Token) >= len(logits) || logits[c.Token] != logits[c.Token] {
				t.Fatalf("token %d of %v", c.Token, logits)
			}
		}
	})
}

func benchLogits() []float32 {
	rnd := rand.New(rand.NewPCG(1, 1))
	logits := make([]float32, 49152)
	for i := range logits {
		logits[i] = float32(rnd.NormFloat64() * 3)
	}
	return logits
}

func BenchmarkSample(b *testing.B) {
	for _, bench := range []struct {
		name string
		p    Params
	}{
		{"greedy", Params{}},
		{"greedy logprobs 5", Params{LogProbs: true, TopLogProbs: 5}},
		{"temperature", Params{Temperature: 1}},
		{"top k 50", Params{Temperature: 1, TopK: 50}},
		{"top p .95", Params{Temperature: 1, TopP: .95}},
		{"all", Params{Temperature: .8, TopK: 100, TopP: .95, MinP: .01, RepetitionPenalty: 1.1}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			s, logits, work := sampler(b, bench.p, 49152, 1, 2, 3), benchLogits(), make([]float32, 49152)
			var scratch Scratch
			b.ReportAllocs()
			for b.Loop() {
				copy(work, logits)
				if _, err := s.Sample(work, nil, &scratch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestNoAllocationPerToken(t *testing.T) {
	for _, p := range []Params{{}, {Temperature: 1, TopK: 50, TopP: .9}, {RepetitionPenalty: 1.2, PresencePenalty: 1}} {
		s, logits, work := sampler(t, p, 49152, 1, 2, 3), benchLogits(), make([]float32, 49152)
		var scratch Scratch
		n := testing.AllocsPerRun(20, func() {
			copy(work, logits)
			_, _ = s.Sample(work, nil, &scratch)
		})
		if n >= 1 {
			t.Errorf("%+v: %v allocations a token", p, n)
		}
	}
}

// A parameter that is tiny for a float64 is not off: cutting to almost nothing
// leaves the likeliest token, and a repetition penalty of almost nothing repeats.
func TestTinyIsNotOff(t *testing.T) {
	var scratch Scratch
	for _, tiny := range []float64{1e-45, 1e-46, 1e-100, math.SmallestNonzeroFloat64} {
		if Narrow(tiny) <= 0 {
			t.Errorf("%g became %g", tiny, Narrow(tiny))
		}
		for seed := range uint64(64) {
			topP := sampler(t, Params{Temperature: 1, TopP: Narrow(tiny), Seed: seed}, 3)
			if got, err := topP.Sample([]float32{1, 1.5, 1.25}, nil, &scratch); got.Token != 1 || err != nil {
				t.Fatalf("top_p %g, seed %d: token %d, %v", tiny, seed, got.Token, err)
			}
			repeat := sampler(t, Params{Temperature: 1, RepetitionPenalty: Narrow(tiny), Seed: seed}, 3, 0)
			if got, err := repeat.Sample([]float32{1, 1.5, 1.25}, nil, &scratch); got.Token != 0 || err != nil {
				t.Fatalf("repetition_penalty %g, seed %d: token %d, %v", tiny, seed, got.Token, err)
			}
		}
	}
	for _, v := range []float64{0, 1, 0.5, -2, 1e-30} {
		if Narrow(v) != float32(v) {
			t.Errorf("%g became %g", v, Narrow(v))
		}
	}
}
