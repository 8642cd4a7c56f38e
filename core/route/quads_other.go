//go:build !amd64

package route

import "github.com/yardmaster/yardmaster/core/prefix"

func quadsLeast(x []float64, least float64) float64 { return plainLeast(x, least) }

func quadsPlace(x []float64, v float64) int { return plainPlace(x, v) }

func quadsHits(numbers []prefix.Worker, blocks []int32, each, most float64, hits []float64) {
	plainHits(numbers, blocks, each, most, hits)
}

func quadsSum(x []float64, sums *[4]float64) { plainSum(x, sums) }

func quadsScale(x []float64, by float64, out []float64) { plainScale(x, by, out) }

func quadsLongest(hit, requests, siblings []float64, few, many float64) float64 {
	return plainLongest(hit, requests, siblings, few, many)
}

func quadsBehind(cost, requests, siblings []float64, few, many, by float64) {
	plainBehind(cost, requests, siblings, few, many, by)
}

func quadsWeigh(w *weights, hit, queued, requests, share, cost []float64) {
	plainWeigh(w, hit, queued, requests, share, cost)
}

func quadsRunnersUp(x []float64, lowest float64) (ties int, second float64) {
	return plainRunnersUp(x, lowest)
}
