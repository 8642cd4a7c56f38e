package load

import (
	"slices"
	"time"
)

// Loads are what a decision reads of many slots, in columns that are lined up
// with the workers asked for. The zero value is ready to use, and its memory is
// used again.
type Loads struct {
	InFlight []float64 // [Slot.InFlight]
	Requests []float64 // InFlight and [Slot.Foreign]
	Queued   []float64 // [Slot.QueuedPrompt]
	Context  []float64 // [Slot.Context]
	Assigned []float64 // [Slot.Assigned]
	// Passed are the places, rising, of those that are to be passed by
	// ([Slot.PassedBy]).
	Passed []int32
}

func (l *Loads) reset(n int) {
	for _, column := range []*[]float64{&l.InFlight, &l.Requests, &l.Queued, &l.Context, &l.Assigned} {
		*column = slices.Grow((*column)[:0], n)[:n]
	}
	l.Passed = l.Passed[:0]
}

// Read reads the slots of the workers, places in View.Workers, into l. Slots
// change meanwhile: each number is as of some moment during the call.
func (c *Columns) Read(workers []int32, now time.Time, l *Loads) {
	n := len(workers)
	l.reset(n)
	inFlight, requests, queued, context, assigned := l.InFlight[:n], l.Requests[:n], l.Queued[:n], l.Context[:n], l.Assigned[:n]
	slots, ns := c.Slots, now.UnixNano()
	alike := c.alike()
	for k, i := range workers {
		s := slots[i]
		own, others := int64(s.InFlight()), int64(s.Others())
		inFlight[k] = float64(own)
		requests[k] = float64(own + others + s.heard.foreign.Load())
		queued[k] = float64(s.prompt.Load() + s.others.prompt.Load())
		context[k] = float64(s.context.Load() + s.others.context.Load())
		if alike > 0 {
			g := s.guess(alike)
			requests[k] += float64(g.requests)
			queued[k] += float64(g.prompt)
			context[k] += float64(g.context)
		}
		assigned[k] = s.Assigned()
		if s.noteworthy(own+others, ns) && s.PassedBy(now) {
			l.Passed = append(l.Passed, int32(k))
		}
	}
}

// noteworthy reports whether PassedBy may hold at ns, unix nanoseconds, with so
// many requests. It is a part of what that looks at, and cheaper.
func (s *Slot) noteworthy(requests, ns int64) bool {
	h := &s.health
	return h.limit > 0 && requests >= h.limit ||
		ns < s.ejected.until.Load() || ns < h.refused.Load() || h.doubted.Load() ||
		h.watched.Load() > 0 && ns-h.sign.Load() > int64(h.patience)
}
