package route

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/core/prefix"
)

// column is n numbers of which many are equal and, where wild is set, some are
// infinite or no numbers.
func column(rng *rand.Rand, n int, wild bool) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = float64(rng.IntN(12))
		if rng.IntN(3) == 0 {
			out[i] = rng.Float64() * 1e5
		}
		if wild && rng.IntN(8) == 0 {
			out[i] = []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1)}[rng.IntN(4)]
		}
	}
	return out
}

// sameBits is what differs in a bit between two numbers, or two columns.
func sameBits(a, b any) string {
	return cmp.Diff(a, b, cmp.Comparer(func(x, y float64) bool {
		return math.Float64bits(x) == math.Float64bits(y)
	}))
}

// The quads do to the bit what is plain.
func TestQuadsArePlain(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range 70 {
		for range 20 {
			quadsOnce(t, rng, n)
		}
	}
}

func quadsOnce(t *testing.T, rng *rand.Rand, n int) {
	t.Helper()
	same := func(what string, got, want any) {
		t.Helper()
		if diff := sameBits(want, got); diff != "" {
			t.Fatalf("%s of %d: %s", what, n, diff)
		}
	}
	x := column(rng, n, true)
	least := plainLeast(x, math.Inf(1))
	if got := leastOf(x); got != least { // of two zeros either one
		t.Fatalf("least of %v is %v", x, got)
	}
	for _, v := range []float64{least, 3, math.Inf(1), -1, math.NaN()} {
		same("place", placeOf(x, v), plainPlace(x, v))
		ties, second := runnersUp(x, v)
		wantTies, wantSecond := plainRunnersUp(x, v)
		same("ties", ties, wantTies)
		if second != wantSecond {
			t.Fatalf("of %v above %v the least is %v, not %v", x, v, second, wantSecond)
		}
	}

	hit, queued, requests := column(rng, n, false), column(rng, n, false), column(rng, n, false)
	share, siblings := column(rng, n, false), column(rng, n, false)
	sums := [4]float64{}
	whole := n &^ 3
	plainSum(share[:whole], &sums)
	for _, v := range share[whole:] {
		sums[0] += v
	}
	same("sum", sumOf(share), sums[0]+sums[1]+(sums[2]+sums[3]))
	got, want := make([]float64, n), make([]float64, n)
	scale(share, 0.3, got)
	plainScale(share, 0.3, want)
	same("scale", got, want)

	w := &weights{hold: 20, each: 128, balance: 2048 * rng.Float64(), prompt: 10_000 * rng.Float64(), longest: 8 * rng.Float64(), tau: 30 * rng.Float64()}
	w.weigh(hit, queued, requests, share, got)
	plainWeigh(w, hit, queued, requests, share, want)
	same("costs", got, want)
	limit := crowds{float64(rng.IntN(8)), float64(rng.IntN(20))}
	limit.putBehind(got, requests, siblings, behind)
	plainBehind(want, requests, siblings, limit.few, limit.many, behind)
	same("costs behind", got, want)
	same("longest", limit.longestOf(hit, requests, siblings), plainLongest(hit, requests, siblings, limit.few, limit.many))

	blocks, numbers := make([]int32, 300), make([]prefix.Worker, n)
	for i := range blocks {
		blocks[i] = int32(rng.IntN(600))
	}
	for i := range numbers {
		numbers[i] = prefix.Worker(rng.IntN(len(blocks)))
	}
	hitsOf(numbers, blocks, 16, 4096.5, got)
	plainHits(numbers, blocks, 16, 4096.5, want)
	same("hits", got, want)
}

// pickPlainly is [Router.pick] by the book, without ties' chance: all places of the
// lowest cost, and the first of the second lowest.
func pickPlainly(cost []float64) (best []int, next int) {
	next = None
	for i, v := range cost {
		switch {
		case math.IsNaN(v):
		case len(best) == 0 || v < cost[best[0]]:
			best = []int{i}
		case v == cost[best[0]]:
			best = append(best, i)
		}
	}
	for i, v := range cost {
		if len(best) > 0 && v > cost[best[0]] && (next == None || v < cost[next]) {
			next = i
		}
	}
	return best, next
}

func TestPickIsLowestAndSecondLowest(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	r := New(Config{})
	for n := range 70 {
		for range 30 {
			cost := column(rng, n, true)
			best, next := r.pick(cost)
			wantBest, wantNext := pickPlainly(cost)
			switch {
			case len(wantBest) == 0:
				if best != None || next != None {
					t.Fatalf("%v: picked %d and %d of none", cost, best, next)
				}
			case len(wantBest) == 1:
				if best != wantBest[0] || next != wantNext {
					t.Fatalf("%v: picked %d and %d, not %d and %d", cost, best, next, wantBest[0], wantNext)
				}
			case !slices.Contains(wantBest, best) || !slices.Contains(wantBest, next) || best == next:
				t.Fatalf("%v: picked %d and %d, not two of %v", cost, best, next, wantBest)
			}
		}
	}
}
