package hub

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/wire/hub"
)

// source is what workers said of themselves, at the leader. It looks again no
// more often than each samplesEvery, for making the set may walk the fleet.
type source struct {
	read func() *fleet.Samples // nil has none

	mu   sync.Mutex
	last atomic.Pointer[glance]
}

type glance struct {
	at      time.Time
	samples *fleet.Samples
}

func (s *source) at(now time.Time) *fleet.Samples {
	if s.read == nil {
		return nil
	}
	if l := s.last.Load(); l != nil && now.Sub(l.at) < samplesEvery {
		return l.samples
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.last.Load(); l != nil && now.Sub(l.at) < samplesEvery {
		return l.samples
	}
	l := &glance{now, s.read()}
	s.last.Store(l)
	return l.samples
}

// addNew appends to m what workers said since before, as of now.
func addNew(m *hub.Samples, before, after *fleet.Samples, now time.Time) {
	old := before.All()
	all := after.All()
	for i := range all {
		s := &all[i]
		for len(old) > 0 && old[0].ID < s.ID {
			old = old[1:]
		}
		known := len(old) > 0 && old[0].ID == s.ID && old[0].Epoch == s.Epoch && old[0].At.Equal(s.At)
		if !known && len(m.Epoch) < load.MaxWorkers {
			addSample(m, s, now)
		}
	}
}

// inbox is what workers said of themselves, at a gateway: rows by epoch, made
// into a set for the present view when somebody asks.
type inbox struct {
	ttl time.Duration

	version atomic.Uint64
	made    atomic.Pointer[made]

	mu   sync.Mutex
	rows map[uint64]word
}

// word is a sample, bound to its epoch alone.
type word struct {
	stats fleet.Stats
	at    time.Time // by this node's clock
}

type made struct {
	version uint64
	view    *fleet.View
	samples *fleet.Samples
}

// again is how much later the same word may seem to have been said when it is
// told anew, e.g. on another connection.
const again = 100 * time.Millisecond

// put takes in m, which was checked, as received now. A word is as old as the
// leader says, and later than the one before it: two clocks are never compared.
func (b *inbox) put(m *hub.Samples, now time.Time) {
	if len(m.GetEpoch()) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, epoch := range m.Epoch {
		w := word{statsAt(m, i), now.Add(-time.Duration(m.AgeUs[i]) * time.Microsecond)}
		if old, ok := b.rows[epoch]; ok {
			if w.stats == old.stats && w.at.Sub(old.at) < again {
				continue
			}
			if !w.at.After(old.at) {
				w.at = old.at.Add(1)
			}
		} else if len(b.rows) >= load.MaxWorkers {
			continue
		}
		b.rows[epoch] = w
	}
	b.version.Add(1)
}

// expire forgets what is older than ttl: its worker or the leader is gone.
func (b *inbox) expire(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	gone := false
	for epoch, w := range b.rows {
		if now.Sub(w.at) > b.ttl {
			delete(b.rows, epoch)
			gone = true
		}
	}
	if gone {
		b.version.Add(1)
	}
}

// samples is the set for view. The same pointer means that nothing is new.
func (b *inbox) samples(view *fleet.View) *fleet.Samples {
	if m := b.made.Load(); m != nil && m.view == view && m.version == b.version.Load() {
		return m.samples
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	m := &made{version: b.version.Load(), view: view}
	list := make([]fleet.Sample, 0, min(len(b.rows), len(view.Workers)))
	for i := range view.Workers {
		w := &view.Workers[i]
		if said, ok := b.rows[uint64(w.Epoch)]; ok {
			list = append(list, fleet.Sample{ID: w.ID, Epoch: w.Epoch, Stats: said.stats, At: said.at})
		}
	}
	m.samples = fleet.NewSamples(list)
	b.made.Store(m)
	return m.samples
}
