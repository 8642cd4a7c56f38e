package host

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The vector forms give the same bits as the plain ones, but for the sign of zero.
func TestConversions(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	special := []float64{0, 1, -1, math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, math.SmallestNonzeroFloat64, math.MaxFloat32, 1e-42, 16_777_217}
	for _, n := range []int{0, 1, 15, 16, 17, 31, 32, 100, 4096} {
		from := make([]float64, n)
		for i := range from {
			from[i] = math.Exp(rng.NormFloat64() * 20)
			if rng.IntN(4) == 0 {
				from[i] = special[rng.IntN(len(special))]
			}
		}
		for name, f := range map[string][2]func([]float32, []float64){"narrow": {narrow, narrowPlain}, "invert": {invert, invertPlain}} {
			got, want := make([]float32, n+1), make([]float32, n+1)
			f[0](got, from)
			f[1](want, from)
			for i := range want {
				if math.Float32bits(got[i]) != math.Float32bits(want[i]) && want[i] == want[i] {
					t.Fatalf("%s of %v, %d of %d: %v, want %v", name, from[min(i, n-1)], i, n, got[i], want[i])
				}
			}
		}
		testWiden(t, from)
	}
}

func testWiden(t *testing.T, values []float64) {
	t.Helper()
	from := make([]float32, len(values))
	narrowPlain(from, values)
	for range 2 {
		got, want := make([]float64, len(from)+1), make([]float64, len(from)+1)
		some, wanted := widen(got, from), widenPlain(want, from)
		if some != wanted {
			t.Fatalf("%d values: one is a number: %t, want %t", len(from), some, wanted)
		}
		for i := range want {
			if got[i] != want[i] && (want[i] == want[i] || got[i] == got[i]) {
				t.Fatalf("%d of %d: %v, want %v", i, len(from), got[i], want[i])
			}
		}
		for i := range from { // and once more without any
			from[i] = float32(math.Inf(i%2*2 - 1))
		}
	}
}

func BenchmarkConvert(b *testing.B) {
	from, to, back := make([]float64, 4096), make([]float32, 4096), make([]float64, 4096)
	for name, f := range map[string]func(){
		"narrow/plain": func() { narrowPlain(to, from) },
		"narrow":       func() { narrow(to, from) },
		"invert/plain": func() { invertPlain(to, from) },
		"invert":       func() { invert(to, from) },
		"widen/plain":  func() { widenPlain(back, to) },
		"widen":        func() { widen(back, to) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				f()
			}
		})
	}
}
