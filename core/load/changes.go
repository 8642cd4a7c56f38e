package load

import (
	"sync/atomic"

	"github.com/yardmaster/yardmaster/core/fleet"
)

// Changes reads what changed of a table's own numbers, for one reader at a time,
// who tells it to the leader and hears what the leader has taken in. It costs the
// slots nothing while it is closed, and little while it is open: a slot that
// changes puts itself on a list, once until it is read.
type Changes struct {
	table *Table
	open  atomic.Bool
	head  atomic.Pointer[Slot]
	ready chan struct{}

	alike    atomic.Int64 // see Slot.guess
	gateways atomic.Int64 // that tell the leader; 0 is none

	// What follows is guarded by the table's lock.
	told [flight]Vector // by number, what the leader has not heard yet
	read uint64         // vectors read since the last whole one, which is the first
	done uint64         // of them, how many the leader has heard
}

// flight is the most vectors that were read and not heard. Beyond them changes
// wait, and come together.
const flight = 64

// mark is a slot's place on the list of those that changed.
type mark struct {
	changes *Changes // nil in a slot without a table
	listed  atomic.Bool
	next    *Slot // of whoever has set listed, then of the reader
}

func newChanges(t *Table) *Changes { return &Changes{table: t, ready: make(chan struct{}, 1)} }

// Changes is the table's own changes. Open begins to collect them.
func (t *Table) Changes() *Changes { return t.changes }

// Open begins to collect. What was before is in Whole.
func (c *Changes) Open() { c.open.Store(true) }

// Close ends it.
func (c *Changes) Close() {
	c.open.Store(false)
	c.drain(func(*Slot) {})
}

// Ready has a value when something changed after nothing had. Other times it may
// have one too.
func (c *Changes) Ready() <-chan struct{} { return c.ready }

// Whole replaces v's content by all slots that have something. Slots that change
// meanwhile are in the next Take. It begins the count of vectors anew.
func (c *Changes) Whole(v *Vector) {
	v.Reset()
	v.Whole = true
	c.drain(func(*Slot) {})
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	for _, s := range c.table.slots {
		if own := s.own(); own != (Counts{}) && v.Len() < MaxWorkers {
			v.Add(uint64(s.Key.Epoch), own)
		}
	}
	c.read, c.done = 0, 0
	c.keep(v)
}

// Take replaces v's content by the slots that changed since they were last read.
// waits reports whether it took none because too much was not heard yet.
func (c *Changes) Take(v *Vector) (waits bool) {
	v.Reset()
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	if c.read-c.done >= flight {
		return true
	}
	c.drain(func(s *Slot) {
		if v.Len() < MaxWorkers {
			v.Add(uint64(s.Key.Epoch), s.own())
		}
	})
	if v.Len() > 0 {
		c.keep(v)
	}
	return false
}

func (c *Changes) keep(v *Vector) {
	c.told[c.read%flight].copy(v)
	c.read++
}

// Heard says that the leader has taken in the first n vectors that were not empty,
// counted from the whole one on, and how many gateways it adds up. It is said
// after SetOthers of the same message.
func (c *Changes) Heard(n uint64, gateways int) {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	m := &c.table.others
	for n = min(n, c.read); c.done < n; c.done++ {
		v := &c.told[c.done%flight]
		if v.Whole {
			for _, s := range m.slots {
				m.saw(s, Counts{})
			}
		}
		for i := range v.Epoch {
			if s := m.slots[fleet.Epoch(v.Epoch[i])]; s != nil {
				m.saw(s, v.At(i))
			}
		}
	}
	c.alike.Store(m.alike(gateways))
	c.gateways.Store(int64(gateways))
}

// drain takes all slots off the list. A slot may be listed again from the moment
// that read is called, so that no change falls between.
func (c *Changes) drain(read func(*Slot)) {
	for s := c.head.Swap(nil); s != nil; {
		next := s.mark.next
		s.mark.next = nil
		s.mark.listed.Store(false)
		read(s)
		s = next
	}
}

// changed makes the slot's own numbers read again, here and, by way of the list,
// for the leader. It is called after they were changed.
func (s *Slot) changed() {
	s.renew()
	c := s.mark.changes
	if c == nil || !c.open.Load() || s.mark.listed.Load() || !s.mark.listed.CompareAndSwap(false, true) {
		return
	}
	for {
		first := c.head.Load()
		s.mark.next = first
		if !c.head.CompareAndSwap(first, s) {
			continue
		}
		if first == nil {
			select {
			case c.ready <- struct{}{}:
			default:
			}
		}
		return
	}
}

// own is the slot's own numbers. A number that a race makes negative for a moment
// is none.
func (s *Slot) own() Counts {
	requests := func(p Phase) uint32 { return uint32(min(max(s.requests[p].Load(), 0), maxRequests)) }
	tokens := func(v *atomic.Int64) uint64 { return uint64(min(max(v.Load(), 0), maxTokens)) }
	return Counts{requests(Prefill), requests(Decode), tokens(&s.prompt), tokens(&s.context)}
}
