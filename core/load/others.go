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

// mirror finds slots by epoch, and keeps what was told of incarnations that the
// table's view does not show yet. The table's lock guards it.
type mirror struct {
	slots map[fleet.Epoch]*Slot
	early map[fleet.Epoch]Counts
	index uint64 // of the newest view
	round uint64
}

func newMirror() mirror {
	return mirror{slots: map[fleet.Epoch]*Slot{}, early: map[fleet.Epoch]Counts{}}
}

func (m *mirror) adopt(s *Slot) {
	m.slots[s.Key.Epoch] = s
	if c, ok := m.early[s.Key.Epoch]; ok {
		s.others.set(c)
		delete(m.early, s.Key.Epoch)
	}
}

func (m *mirror) drop(s *Slot) {
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
			s.others.set(c)
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
			s.others.set(Counts{})
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

// ForgetOthers makes it unknown what other gateways have: it counts for nothing.
func (t *Table) ForgetOthers() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.others.set(&Vector{Whole: true})
}
