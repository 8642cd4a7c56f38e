package load

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
)

// Columns are the slots of a view's workers: Slots[i] belongs to
// View.Workers[i]. They are immutable; the slots are live.
type Columns struct {
	View  *fleet.View
	Slots []*Slot

	versions []*atomic.Uint32 // of the slots
}

// Table holds the slots. It is safe for concurrent use.
type Table struct {
	// Patience is how long a worker with streams may give no token; set before
	// use, default DefaultPatience.
	Patience time.Duration

	registry *measure.Registry
	current  atomic.Pointer[Columns]
	changes  *Changes

	mu       sync.Mutex
	slots    map[Key]*Slot
	others   mirror
	versions versions
}

// NewTable makes an empty table that shows its counts in registry.
func NewTable(registry *measure.Registry) *Table {
	t := &Table{registry: registry, Patience: DefaultPatience, slots: map[Key]*Slot{}, others: newMirror()}
	t.changes = newChanges(t)
	return t
}

// Columns lines the slots up with view. For the view it was last called with
// that is one load; a new view makes slots for new incarnations and forgets
// those that are gone and have nothing in flight.
func (t *Table) Columns(view *fleet.View) *Columns {
	if c := t.current.Load(); c != nil && c.View == view {
		return c
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(view.Workers)
	c := &Columns{View: view, Slots: make([]*Slot, n), versions: make([]*atomic.Uint32, n)}
	live := make(map[Key]bool, len(view.Workers))
	for i := range view.Workers {
		key := Key{view.Workers[i].ID, view.Workers[i].Epoch}
		live[key] = true
		c.Slots[i] = t.slot(key, &view.Workers[i])
		c.versions[i] = c.Slots[i].version
	}
	if old := t.current.Load(); old != nil && old.View.Index > view.Index {
		return c // a late reader of an older view decides nothing for the others
	}
	for key, s := range t.slots {
		if !live[key] && s.InFlight() == 0 {
			delete(t.slots, key)
			t.others.drop(s)
			t.retire(key.ID)
		}
	}
	t.others.follow(view)
	t.current.Store(c)
	return c
}

// Restart says that the views to come are of another history, whose indices may be
// lower than those of the views before.
func (t *Table) Restart() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.current.Store(nil)
	t.others.index = 0
}

// slot finds or makes the slot of key, which is w. The caller holds the lock.
func (t *Table) slot(key Key, w *fleet.Worker) *Slot {
	s := t.slots[key]
	if s == nil {
		s = &Slot{Key: key, version: t.versions.next()}
		s.health.patience = t.Patience
		if w.Role != fleet.RolePrefill { // whose queue is a matter of time, not of places
			s.health.limit = limitOf(w.Capacity.MaxRunning)
		}
		s.health.doubts = t.registry.Counter(measure.Ejections, string(key.ID), "no_progress")
		for p := range phases {
			s.gauges[p] = t.registry.Gauge(measure.WorkerInFlight, string(key.ID), p.String())
		}
		for other, old := range t.slots {
			if other.ID == key.ID && old.CanContinue() { // so did its engine before the restart
				s.Continuing()
			}
		}
		s.mark.changes = t.changes
		t.slots[key] = s
		t.others.adopt(s)
	}
	return s
}

// retire drops the gauges of a worker of which no incarnation is left. The caller
// holds the lock.
func (t *Table) retire(id fleet.WorkerID) {
	for key := range t.slots {
		if key.ID == id {
			return
		}
	}
	t.registry.Forget(measure.WorkerInFlight, "worker", string(id))
}

// InFlight is the number of requests in flight on all incarnations, departed
// ones included.
func (t *Table) InFlight() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, s := range t.slots {
		n += s.InFlight()
	}
	return n
}
