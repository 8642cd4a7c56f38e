package load

import (
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// Loads are what a decision reads of many slots, in columns that are lined up
// with the workers asked for. The zero value is ready to use; one that is used
// again for the same workers reads again only what has changed. The columns are
// not to be changed.
type Loads struct {
	InFlight []float64 // [Slot.InFlight]
	Requests []float64 // InFlight and [Slot.Foreign]
	Queued   []float64 // [Slot.QueuedPrompt]
	Context  []float64 // [Slot.Context]
	Assigned []float64 // [Slot.Assigned]
	// Passed are the places, rising, of those that are to be passed by
	// ([Slot.PassedBy]).
	Passed []int32

	columns *Columns
	alike   int64
	at      int64    // unix nanoseconds of the latest reading
	workers []int32  // as read; none where a slot is to be read anew
	version []uint32 // of the slot, as read
	due     []int64  // from when, unix nanoseconds, the slot may be noteworthy
	soonest int64    // of them, or before
}

// none is no worker.
const none = -1

// lateness is by how much a reading may be of an earlier time than the one before
// it without reading all anew: callers look at the clock before they wait for
// each other.
const lateness = time.Second

// Read reads the slots of the workers, places in View.Workers, into l. Slots
// change meanwhile: each number is as of some moment during the call.
func (c *Columns) Read(workers []int32, now time.Time, l *Loads) {
	n, ns := len(workers), now.UnixNano()
	if alike := c.alike(); l.columns != c || l.alike != alike || len(l.workers) != n || ns < l.at-int64(lateness) {
		l.reset(n)
		l.columns, l.alike, l.at = c, alike, ns
	}
	l.at = max(l.at, ns)
	read, seen, versions := l.workers[:n], l.version[:n], c.versions
	for k, i := range workers {
		if v := versions[i].Load(); v != seen[k] || i != read[k] {
			read[k], seen[k] = i, v
			l.read(k, c.Slots[i], ns)
		}
	}
	l.Passed = l.Passed[:0]
	if ns >= l.soonest {
		l.pass(now, ns)
	}
}

func (l *Loads) reset(n int) {
	for _, column := range []*[]float64{&l.InFlight, &l.Requests, &l.Queued, &l.Context, &l.Assigned} {
		*column = slices.Grow((*column)[:0], n)[:n]
	}
	l.workers, l.version = slices.Grow(l.workers[:0], n)[:n], slices.Grow(l.version[:0], n)[:n]
	l.due, l.soonest = slices.Grow(l.due[:0], n)[:n], math.MaxInt64
	for k := range l.workers {
		l.workers[k] = none
	}
}

// read reads a slot for place k.
func (l *Loads) read(k int, s *Slot, ns int64) {
	own, others := int64(s.InFlight()), int64(s.Others())
	g := guess{}
	if l.alike > 0 {
		g = s.guess(l.alike)
	}
	l.InFlight[k] = float64(own)
	l.Requests[k] = float64(own+others+s.heard.foreign.Load()) + float64(g.requests)
	l.Queued[k] = float64(s.prompt.Load()+s.others.prompt.Load()) + float64(g.prompt)
	l.Context[k] = float64(s.context.Load()+s.others.context.Load()) + float64(g.context)
	l.Assigned[k] = s.Assigned()
	l.due[k] = s.due(own+others, ns)
	l.soonest = min(l.soonest, l.due[k])
}

// pass finds who is to be passed by among those that may be.
func (l *Loads) pass(now time.Time, ns int64) {
	l.soonest = math.MaxInt64
	for k, due := range l.due {
		if ns >= due {
			s := l.columns.Slots[l.workers[k]]
			requests := int64(s.InFlight() + s.Others())
			if s.noteworthy(requests, ns) && s.PassedBy(now) {
				l.Passed = append(l.Passed, int32(k))
			}
			due = s.due(requests, ns)
			l.due[k] = due
		}
		l.soonest = min(l.soonest, due)
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

// due is from when the slot, unless its version rises before, may be noteworthy.
// While it is now, and a little longer, that is at once.
func (s *Slot) due(requests, ns int64) int64 {
	h := &s.health
	switch {
	case h.limit > 0 && requests >= h.limit, h.doubted.Load(),
		ns-int64(lateness) < max(s.ejected.until.Load(), h.refused.Load()):
		return math.MinInt64
	case h.watched.Load() > 0:
		return h.sign.Load() + int64(h.patience) // signs come later and later
	}
	return math.MaxInt64
}

// versions hands out the counters by which readers see that a slot has changed.
// They lie side by side, so that a reader finds those of many slots in few cache
// lines.
type versions struct{ left []atomic.Uint32 }

const versionsChunk = 256

func (v *versions) next() *atomic.Uint32 {
	if len(v.left) == 0 {
		v.left = make([]atomic.Uint32, versionsChunk)
	}
	first := &v.left[0]
	v.left = v.left[1:]
	return first
}

// renew tells readers to read the slot again. It comes after the change: of what
// is in [Loads], and of whatever makes the slot noteworthy earlier.
func (s *Slot) renew() {
	if s.version != nil {
		s.version.Add(1)
	}
}
