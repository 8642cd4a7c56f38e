package load

import (
	"sync/atomic"

	"github.com/yardmaster/yardmaster/core/fleet"
)

// others is what other gateways have on an incarnation, as last told.
type others struct {
	requests atomic.Uint64 // prefill in the upper half, decode in the lower
	prompt   atomic.Int64  // tokens
	context  atomic.Int64  // tokens
	round    uint64        // of mirror, which last named the slot; guarded by the table's lock
}

func (o *others) set(c Counts) {
	o.requests.Store(uint64(c.Prefill)<<32 | uint64(c.Decode))
	o.prompt.Store(int64(min(c.Prompt, 1<<62)))
	o.context.Store(int64(min(c.Context, 1<<62)))
}

// Others is the requests of other gateways on the incarnation, in all phases, as
// they were last told.
func (s *Slot) Others() int {
	v := s.others.requests.Load()
	return int(v>>32) + int(v&(1<<32-1))
}

// OthersIn is Others of one phase.
func (s *Slot) OthersIn(p Phase) int {
	v := s.others.requests.Load()
	if p == Prefill {
		return int(v >> 32)
	}
	return int(v & (1<<32 - 1))
}

// gateways is how many share the incarnation, this one included.
func (s *Slot) gateways() int64 {
	if s.mark.changes == nil {
		return 1
	}
	return max(s.mark.changes.gateways.Load(), 1)
}

// seen is this gateway's own numbers as the leader knew them when it last told of
// the others. Own work beyond that is news to the others, as theirs is to this
// gateway.
type seen struct{ requests, prompt, context atomic.Int64 }

// guess is what others have probably done since they were told of.
type guess struct{ requests, prompt, context int64 }

// alikeOne is an alike of 1: others do together as much as this gateway.
const alikeOne = 256

// guess supposes that others, who knew the same as this gateway, have since done
// the same, as often as they are busier. Without it gateways that all know the
// same a few milliseconds late all fill the same gaps; see DESIGN.md.
func (s *Slot) guess(alike int64) guess {
	more := func(own, seen int64) int64 { return max(own-seen, 0) * alike / alikeOne }
	return guess{
		more(int64(s.InFlight()), s.seen.requests.Load()),
		more(s.prompt.Load(), s.seen.prompt.Load()),
		more(s.context.Load(), s.seen.context.Load()),
	}
}

func (s *Slot) guessNow() guess {
	if c := s.mark.changes; c != nil {
		if alike := c.alike.Load(); alike > 0 {
			return s.guess(alike)
		}
	}
	return guess{}
}

// alike is how much busier others are than this gateway, in alikeOne.
func (c *Columns) alike() int64 {
	if len(c.Slots) == 0 || c.Slots[0].mark.changes == nil {
		return 0
	}
	return c.Slots[0].mark.changes.alike.Load()
}

// mirror finds slots by epoch, and keeps what was told of incarnations that the
// table's view does not show yet. The table's lock guards it.
type mirror struct {
	slots map[fleet.Epoch]*Slot
	early map[fleet.Epoch]Counts
	index uint64 // of the newest view
	round uint64

	others, own int64 // requests in the slots: of others, and seen by the leader
}

func newMirror() mirror {
	return mirror{slots: map[fleet.Epoch]*Slot{}, early: map[fleet.Epoch]Counts{}}
}

func (m *mirror) adopt(s *Slot) {
	m.slots[s.Key.Epoch] = s
	if c, ok := m.early[s.Key.Epoch]; ok {
		m.tell(s, c)
		delete(m.early, s.Key.Epoch)
	}
}

func (m *mirror) drop(s *Slot) {
	m.tell(s, Counts{})
	m.saw(s, Counts{})
	if m.slots[s.Key.Epoch] == s {
		delete(m.slots, s.Key.Epoch)
	}
}

// follow forgets what was told of incarnations that are gone.
func (m *mirror) follow(view *fleet.View) {
	m.index = max(m.index, view.Index)
	for epoch := range m.early {
		if uint64(epoch) <= m.index {
			delete(m.early, epoch)
		}
	}
}

func (m *mirror) tell(s *Slot, c Counts) {
	m.others += int64(c.Prefill) + int64(c.Decode) - int64(s.Others())
	s.others.set(c)
	s.renew()
}

func (m *mirror) saw(s *Slot, c Counts) {
	requests := int64(c.Prefill) + int64(c.Decode)
	m.own += requests - s.seen.requests.Load()
	s.seen.requests.Store(requests)
	s.seen.prompt.Store(int64(c.Prompt))
	s.seen.context.Store(int64(c.Context))
	s.renew()
}

// alike is Columns.alike anew: by what all had when the leader told. Others count
// for no more than their number, lest a gateway that does little guesses much.
func (m *mirror) alike(gateways int) int64 {
	most := int64(max(gateways-1, 0)) * alikeOne
	if m.own <= 0 {
		return most
	}
	return min(m.others*alikeOne/m.own, most)
}

func (m *mirror) set(v *Vector) {
	m.round++
	if v.Whole {
		clear(m.early)
	}
	for i := range v.Epoch {
		epoch, c := fleet.Epoch(v.Epoch[i]), v.At(i)
		s := m.slots[epoch]
		switch {
		case s != nil:
			m.tell(s, c)
			s.others.round = m.round
		case uint64(epoch) <= m.index:
			// The worker is gone.
		case c == (Counts{}):
			delete(m.early, epoch)
		case len(m.early) < MaxWorkers:
			m.early[epoch] = c
		}
	}
	if !v.Whole {
		return
	}
	for _, s := range m.slots {
		if s.others.round != m.round {
			m.tell(s, Counts{})
		}
	}
}

// SetOthers takes in what other gateways have: each number replaces the one
// before. A whole vector replaces all. v must be valid.
func (t *Table) SetOthers(v *Vector) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.others.set(v)
}

// ForgetOthers makes it unknown what other gateways have: it counts for nothing,
// and nothing is guessed.
func (t *Table) ForgetOthers() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.others.set(&Vector{Whole: true})
	t.changes.alike.Store(0)
	t.changes.gateways.Store(1)
}
