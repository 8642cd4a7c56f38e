package cost

import (
	"math"
	"sync/atomic"

	"github.com/yardmaster/yardmaster/core/unit"
)

// Ratio learns how many bytes of request text make a token, from what engines
// report: an exponentially weighted mean, each report weighing 1/16. It is safe
// for concurrent use; two reports at the same instant may count as one. The
// zero value assumes 4 bytes a token.
type Ratio struct{ bits atomic.Uint64 }

const (
	firstRatio  = 4.0
	ratioWeight = 1.0 / 16
	// Beyond these a report says more about a broken counter or an image than
	// about text.
	leastRatio, mostRatio = 0.5, 64.0
)

// BytesPerToken is the present estimate.
func (r *Ratio) BytesPerToken() float64 {
	if bits := r.bits.Load(); bits != 0 {
		return math.Float64frombits(bits)
	}
	return firstRatio
}

// Tokens estimates the tokens of size bytes, rounded up.
func (r *Ratio) Tokens(size unit.Bytes) unit.Tokens {
	return unit.Tokens(math.Ceil(float64(max(size, 0)) / r.BytesPerToken()))
}

// Learn takes in that a prompt of size bytes had n tokens.
func (r *Ratio) Learn(size unit.Bytes, n unit.Tokens) {
	if size <= 0 || n <= 0 {
		return
	}
	seen := min(max(float64(size)/float64(n), leastRatio), mostRatio)
	old := r.BytesPerToken()
	r.bits.Store(math.Float64bits(old + ratioWeight*(seen-old)))
}
