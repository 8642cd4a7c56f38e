package dispatch

import (
	"slices"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/unit"
)

// Explained is one placement and how it came about. A request that was offered
// to several workers has one for each.
type Explained struct {
	RequestID string
	Model     string
	At        time.Time // of the decision
	Seed      uint64    // of the policy's random numbers, where it is not the configured one
	Placement Placement
	route.Explanation
	// Outcome is how the request ended, as in Outcome.Name; empty while it runs, and
	// for a placement that another one followed.
	Outcome string
	// Cached is what the engine then reported of the prompt as cached; it is
	// meaningful when CachedKnown.
	Cached      unit.Tokens
	CachedKnown bool
}

// keptExplanations is how many placements are remembered.
const keptExplanations = 1024

// memory keeps the last placements in a ring. It is safe for concurrent use.
type memory struct {
	mu   sync.Mutex
	ring []Explained
	next uint64 // placements so far
}

// keep remembers a placement; explain fills in how it came about. It returns
// the place for ended.
func (m *memory) keep(e Explained, explain func(*route.Explanation)) (place uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.ring) < keptExplanations {
		m.ring = append(m.ring, Explained{})
	}
	at := &m.ring[m.next%keptExplanations]
	e.Explanation = at.Explanation // its memory serves again
	*at = e
	explain(&at.Explanation)
	m.next++
	return m.next // never zero
}

// ended takes in how the request at a place ended, if it is still there.
func (m *memory) ended(place uint64, o *Outcome) {
	if place == 0 || o.Placement == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.next-place >= keptExplanations {
		return
	}
	at := &m.ring[(place-1)%keptExplanations]
	at.Placement, at.Outcome = *o.Placement, o.Name
	at.Cached, at.CachedKnown = o.Usage.Cached, o.Usage.Known && o.Usage.CachedKnown
}

// find copies the placements of a request, in order.
func (m *memory) find(id string) (out []Explained) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.ring {
		if m.ring[i].RequestID == id {
			e := m.ring[i]
			e.Explanation = e.Clone()
			out = append(out, e)
		}
	}
	slices.SortStableFunc(out, func(a, b Explained) int { return a.At.Compare(b.At) })
	return out
}

// Explain says how the request of that id was placed, each of its attempts in
// order; nil when it is not among the last thousand or so.
func (d *Dispatcher) Explain(id string) []Explained { return d.memory.find(id) }
