package route

import (
	"math"

	"github.com/yardmaster/yardmaster/core/prefix"
)

// What a decision does with every candidate is done with whole columns here, four
// numbers at a time in assembly where there is some ([quads_amd64.s]), the rest one
// at a time. Both do the same operations in the same order and give the same bits:
// the conversions below keep a compiler from rounding less often than the assembly.

// whole is how many leading numbers of n make whole fours.
func whole(n int) int { return n &^ 3 }

// leastOf is the least of the numbers, NaN left aside, or infinity.
func leastOf(x []float64) float64 {
	n := whole(len(x))
	return plainLeast(x[n:], quadsLeast(x[:n], math.Inf(1)))
}

func plainLeast(x []float64, least float64) float64 {
	for _, v := range x {
		if v < least {
			least = v
		}
	}
	return least
}

// runnersUp is how many of the numbers are lowest, which is the least of them, and
// the least of those that are more, or infinity.
func runnersUp(x []float64, lowest float64) (ties int, second float64) {
	n := whole(len(x))
	ties, second = quadsRunnersUp(x[:n], lowest)
	more, least := plainRunnersUp(x[n:], lowest)
	return ties + more, min(second, least)
}

func plainRunnersUp(x []float64, lowest float64) (ties int, second float64) {
	second = math.Inf(1)
	for _, v := range x {
		switch {
		case v == lowest:
			ties++
		case v > lowest && v < second:
			second = v
		}
	}
	return ties, second
}

// placeOf is the place of the first number that is v, or None.
func placeOf(x []float64, v float64) int {
	n := whole(len(x))
	if at := quadsPlace(x[:n], v); at >= 0 {
		return at
	}
	if at := plainPlace(x[n:], v); at >= 0 {
		return n + at
	}
	return None
}

func plainPlace(x []float64, v float64) int {
	for i, w := range x {
		if w == v {
			return i
		}
	}
	return -1
}

// hitsOf writes the hits, in tokens, of workers whose numbers are all in blocks: so
// many each block, at most as many.
func hitsOf(numbers []prefix.Worker, blocks []int32, each, most float64, hits []float64) {
	n := whole(len(hits))
	quadsHits(numbers[:n], blocks, each, most, hits[:n])
	plainHits(numbers[n:len(hits)], blocks, each, most, hits[n:])
}

func plainHits(numbers []prefix.Worker, blocks []int32, each, most float64, hits []float64) {
	for k, number := range numbers[:len(hits)] {
		hit := float64(blocks[number]) * each
		if hit > most {
			hit = most
		}
		hits[k] = hit
	}
}

// sumOf is the sum of the numbers. It goes in four lanes, since an addition waits for
// the one before.
func sumOf(x []float64) float64 {
	n := whole(len(x))
	sums := [4]float64{}
	quadsSum(x[:n], &sums)
	for _, v := range x[n:] {
		sums[0] += v
	}
	return sums[0] + sums[1] + (sums[2] + sums[3])
}

func plainSum(x []float64, sums *[4]float64) {
	for ; len(x) >= 4; x = x[4:] {
		for k := range sums {
			sums[k] += x[k]
		}
	}
}

// scale writes x times by to out.
func scale(x []float64, by float64, out []float64) {
	n := whole(len(x))
	quadsScale(x[:n], by, out[:n])
	plainScale(x[n:], by, out[n:len(x)])
}

func plainScale(x []float64, by float64, out []float64) {
	for k, v := range x {
		out[k] = v * by
	}
}

// longestOf is the longest hit at a candidate that is not crowded, or 0.
func (w crowds) longestOf(hit, requests, siblings []float64) float64 {
	n := whole(len(hit))
	longest := quadsLongest(hit[:n], requests[:n], siblings[:n], w.few, w.many)
	return max(longest, plainLongest(hit[n:], requests[n:], siblings[n:], w.few, w.many))
}

func plainLongest(hit, requests, siblings []float64, few, many float64) float64 {
	longest := 0.0
	for i, h := range hit {
		if h > longest && !crowded(requests[i], siblings[i], few, many) {
			longest = h
		}
	}
	return longest
}

// putBehind adds by to the cost of those that are crowded.
func (w crowds) putBehind(cost, requests, siblings []float64, by float64) {
	n := whole(len(cost))
	quadsBehind(cost[:n], requests[:n], siblings[:n], w.few, w.many, by)
	plainBehind(cost[n:], requests[n:], siblings[n:], w.few, w.many, by)
}

func plainBehind(cost, requests, siblings []float64, few, many, by float64) {
	for i := range cost {
		if crowded(requests[i], siblings[i], few, many) {
			cost[i] += by
		}
	}
}

// crowded is said of a candidate with few requests or more, if half of them are
// siblings or if they are more than many.
func crowded(requests, siblings, few, many float64) bool {
	return requests >= few && (2*siblings >= requests || requests > many)
}

// weights are the numbers that Sticky's costs are made of beside the columns.
type weights struct{ hold, each, balance, prompt, longest, tau float64 }

// weigh writes the costs of candidates that are equally fast and not crowded.
func (w *weights) weigh(hit, queued, requests, share, cost []float64) {
	n := whole(len(cost))
	quadsWeigh(w, hit[:n], queued[:n], requests[:n], share[:n], cost[:n])
	plainWeigh(w, hit[n:], queued[n:], requests[n:], share[n:], cost[n:])
}

func plainWeigh(w *weights, hit, queued, requests, share, cost []float64) {
	for i := range cost {
		h := hit[i]
		if h > w.longest {
			h = w.longest
		}
		again := w.hold * (w.longest - h)
		if again > w.tau {
			again = w.tau
		}
		gain := w.prompt - h
		if gain > w.balance {
			gain = w.balance
		}
		cost[i] = queued[i] + float64(w.each*requests[i]) + w.prompt - w.longest + again + float64(gain*share[i])
	}
}
