package traffic

import (
	"math"
	"time"

	"github.com/yardmaster/yardmaster/core/measure"
)

// Served is what gateways did for a model between two looks. The zero value is
// nothing. Rates are per second.
type Served struct {
	Arrivals, Prompt, Cached, Output float64 // rates
	Waiting                          float64 // requests that wait at the moment
	First, Between                   Times
}

// Add adds what was done for another model.
func (s *Served) Add(o *Served) {
	s.Arrivals += o.Arrivals
	s.Prompt += o.Prompt
	s.Cached += o.Cached
	s.Output += o.Output
	s.Waiting += o.Waiting
	s.First.add(&o.First)
	s.Between.add(&o.Between)
}

// HitRatio is the part of the prompt tokens that was found in caches; NaN without
// prompts.
func (s *Served) HitRatio() float64 {
	if s.Prompt <= 0 {
		return math.NaN()
	}
	return min(s.Cached/s.Prompt, 1)
}

// Times is how many times fell into each bucket.
type Times struct {
	bounds []float64 // of the buckets, in seconds; nil before the first
	counts []uint64
}

func (t *Times) add(o *Times) {
	if o.bounds == nil {
		return
	}
	if t.bounds == nil {
		t.bounds, t.counts = o.bounds, make([]uint64, len(o.counts))
	}
	for i, n := range o.counts {
		t.counts[i] += n
	}
}

// Quantile is the time in milliseconds that the part q of the times does not exceed,
// as far as buckets tell: times are taken to lie evenly in theirs. Beyond the last
// bound it is that bound. NaN without times.
func (t *Times) Quantile(q float64) float64 {
	var all uint64
	for _, n := range t.counts {
		all += n
	}
	if all == 0 {
		return math.NaN()
	}
	rank, below := q*float64(all), 0.0
	for i, n := range t.counts {
		if i == len(t.bounds) {
			break
		}
		if n > 0 && below+float64(n) >= rank {
			least := 0.0
			if i > 0 {
				least = t.bounds[i-1]
			}
			return 1000 * (least + (t.bounds[i]-least)*(rank-below)/float64(n))
		}
		below += float64(n)
	}
	return 1000 * t.bounds[len(t.bounds)-1]
}

// Meter makes rates of what gateways say. It belongs to one goroutine.
type Meter struct {
	before map[string]seen
}

// seen is what a gateway had said at the look before, and what that came to.
type seen struct {
	word
	served map[string]Served // nil before its second word
}

// NewMeter is a meter that has seen nothing.
func NewMeter() *Meter { return &Meter{before: map[string]seen{}} }

// Read is what gateways did, by model, between their words at the last look and now.
// A gateway that has said nothing since counts as it did before. known is false while
// there is none of which two words were heard: then nothing is known, not even that
// nobody asks; what waits is in served all the same.
func (m *Meter) Read(b *Book) (served map[string]*Served, known bool) {
	served = map[string]*Served{}
	now := b.words()
	for name := range m.before {
		if _, still := now[name]; !still {
			delete(m.before, name)
		}
	}
	for name, w := range now {
		was, ok := m.before[name]
		switch {
		case !ok || was.incarnation != w.incarnation || !w.continues(&was.word):
			was = seen{word: w}
		case w.at.After(was.at):
			was = seen{w, w.since(&was.word)}
		}
		m.before[name] = was
		known = known || was.served != nil
		for model, t := range w.totals {
			of(served, model).Waiting += float64(t.Waiting)
		}
		for model := range was.served {
			one := was.served[model]
			of(served, model).Add(&one)
		}
	}
	return served, known
}

func of(served map[string]*Served, model string) *Served {
	s := served[model]
	if s == nil {
		s = &Served{}
		served[model] = s
	}
	return s
}

// continues reports whether no count is below what it was: else it is not the word of
// the same gateway, whatever it says.
func (w *word) continues(was *word) bool {
	for model, old := range was.totals {
		t, ok := w.totals[model]
		if ok && (t.Arrivals < old.Arrivals || t.Prompt < old.Prompt || t.Cached < old.Cached || t.Output < old.Output ||
			falls(t.First, old.First) || falls(t.Between, old.Between)) {
			return false
		}
	}
	return true
}

func falls(now, before []uint64) bool {
	if len(before) == 0 {
		return false
	}
	if len(now) != len(before) {
		return true
	}
	for i := range now {
		if now[i] < before[i] {
			return true
		}
	}
	return false
}

// since is what was done between two words of one incarnation.
func (w *word) since(was *word) map[string]Served {
	seconds := w.at.Sub(was.at).Seconds()
	out := make(map[string]Served, len(w.totals))
	rate := func(now, before uint64) float64 { return float64(now-before) / max(seconds, shortest.Seconds()) }
	for model, t := range w.totals {
		old := was.totals[model]
		out[model] = Served{
			Arrivals: rate(t.Arrivals, old.Arrivals), Prompt: rate(t.Prompt, old.Prompt), Cached: rate(t.Cached, old.Cached),
			Output: rate(t.Output, old.Output),
			First:  timesOf(t.First, old.First, measure.TTFT.Buckets), Between: timesOf(t.Between, old.Between, measure.ITL.Buckets),
		}
	}
	return out
}

// shortest is the least time that a rate is taken over: words that come at once, after
// a stall, are no burst.
const shortest = 10 * time.Millisecond

func timesOf(now, before []uint64, bounds []float64) Times {
	if len(now) != len(bounds)+1 {
		return Times{}
	}
	t := Times{bounds: bounds, counts: make([]uint64, len(now))}
	for i := range now {
		t.counts[i] = now[i]
		if len(before) == len(now) {
			t.counts[i] -= before[i]
		}
	}
	return t
}
