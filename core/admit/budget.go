package admit

import "sync/atomic"

// Budget bounds what the gateway adds to the load by offering requests to
// another worker: a share of the requests, so that a fleet in trouble is not
// asked several times for everything. The zero value refuses every retry.
type Budget struct {
	earn, most int64 // thousandths of a retry
	left       atomic.Int64
}

// burst is how many retries may come at once: all that were on a worker when it
// died, in a fleet of usual size.
const burst = 100

// NewBudget allows share retries per request, and a burst of 100; it begins full.
func NewBudget(share float64) *Budget {
	b := &Budget{earn: int64(share * 1000), most: burst * 1000}
	b.left.Store(b.most)
	return b
}

// Request counts a request, which earns its share of a retry.
func (b *Budget) Request() {
	if left := b.left.Load(); left < b.most {
		b.left.Add(min(b.earn, b.most-left)) // a race overshoots by a few shares
	}
}

// Retry takes one retry out of the budget, and reports whether there was one.
func (b *Budget) Retry() bool {
	for {
		left := b.left.Load()
		if left < 1000 {
			return false
		}
		if b.left.CompareAndSwap(left, left-1000) {
			return true
		}
	}
}
