package live

import (
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/route"
)

// budget bounds the share of time that shadows take, in one word: the time until
// which what was taken is paid for.
type budget struct {
	share float64
	paid  atomic.Int64 // Unix nanoseconds
}

// ahead is how far shadows may be ahead of their share.
const ahead = 20 * time.Millisecond

// affords reports whether a shadow may score now.
func (b *budget) affords(now time.Time) bool { return b.paid.Load() <= now.Add(ahead).UnixNano() }

// spend takes the time that a shadow took, which ended now.
func (b *budget) spend(took time.Duration, now time.Time) {
	cost := int64(float64(took) / b.share)
	for {
		paid := b.paid.Load()
		if b.paid.CompareAndSwap(paid, max(paid, now.UnixNano())+cost) {
			return
		}
	}
}

// shadow is a stage that is tried beside the one that decides.
type shadow struct {
	route.Policy
	name   string
	clock  clock.Clock
	budget *budget

	agree, disagree, skipped measure.Counter
}

func newShadow(p route.Policy, name string, b *budget, c clock.Clock, r *measure.Registry) *shadow {
	return &shadow{
		Policy: p, name: name, clock: c, budget: b,
		agree: r.Counter(measure.PolicyShadow, name, "agree"), disagree: r.Counter(measure.PolicyShadow, name, "disagree"),
		skipped: r.Counter(measure.PolicyShadow, name, "skipped"),
	}
}

// Name is that of the stage.
func (s *shadow) Name() string { return s.name }

// Needs is what the stage reads of what is filled on demand.
func (s *shadow) Needs() route.Needs { return route.NeedsOf(s.Policy) }

// Score is the stage's, on the shadows' time.
func (s *shadow) Score(q *route.Query, c *route.Columns, cost []float64) {
	began := s.clock.Now()
	s.Policy.Score(q, c, cost)
	now := s.clock.Now()
	s.budget.spend(now.Sub(began), now)
}

// Compared counts.
func (s *shadow) Compared(agrees bool) {
	if agrees {
		s.agree.Inc()
	} else {
		s.disagree.Inc()
	}
}
