package route

import "github.com/yardmaster/yardmaster/core/prefix"

// Each is the function called plain instead of quads, for columns of whole fours.
// They need no more than every amd64 processor has.

//go:noescape
func quadsLeast(x []float64, least float64) float64

//go:noescape
func quadsPlace(x []float64, v float64) int

//go:noescape
func quadsHits(numbers []prefix.Worker, blocks []int32, each, most float64, hits []float64)

//go:noescape
func quadsSum(x []float64, sums *[4]float64)

//go:noescape
func quadsScale(x []float64, by float64, out []float64)

//go:noescape
func quadsLongest(hit, requests, siblings []float64, few, many float64) float64

//go:noescape
func quadsBehind(cost, requests, siblings []float64, few, many, by float64)

//go:noescape
func quadsWeigh(w *weights, hit, queued, requests, share, cost []float64)

//go:noescape
func quadsRunnersUp(x []float64, lowest float64) (ties int, second float64)
