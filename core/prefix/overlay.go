package prefix

import (
	"time"

	"github.com/yardmaster/yardmaster/core/unit"
)

// Overlay is one gateway's own guess of what its recent decisions have put into
// the workers' caches: between choosing a worker and the worker's first event,
// requests that share the prompt already find each other. An entry lives for one
// to two TTLs, or less where its budget is full before. It is never replicated.
//
// A decision enters a chain from its first block, so a worker's hit is the
// longer of what the index and the overlay know.
//
// An Overlay is for one goroutine at a time.
type Overlay struct {
	ttl        time.Duration
	budget     int // bytes, of each generation
	young, old *generation
}

// generation is what was entered within one TTL.
type generation struct {
	born time.Time
	tree
	names []uint32 // by Worker, its name in the tree; 0 is none
	main  []Worker // by name, whose it is; MaxWorkers is one that was forgotten
}

// NewOverlay is an overlay whose entries live for at least ttl, in at most
// budget bytes.
func NewOverlay(ttl time.Duration, budget unit.Bytes) *Overlay {
	return &Overlay{ttl: ttl, budget: int(budget / 2)}
}

// Add enters that w is about to hold chain. It takes time with what no chain
// before had in common with this one.
func (o *Overlay) Add(w Worker, chain []Hash, now time.Time) {
	chain = chain[:min(len(chain), o.budget/(4*hashBytes))]
	if len(chain) == 0 || int(w) >= MaxWorkers {
		return
	}
	o.turn(now, chain)
	o.young.add(o.young.name(w), chain)
}

// turn makes the young generation old when its time has come, or it has no room
// for chain.
func (o *Overlay) turn(now time.Time, chain []Hash) {
	g := o.young
	switch {
	case g == nil:
	case now.Sub(g.born) >= 2*o.ttl:
		o.old = nil
	case now.Sub(g.born) >= o.ttl || g.bytes+most(chain, len(g.main)) > o.budget:
		o.old = g
	default:
		return
	}
	o.young = &generation{born: now, tree: newTree(), main: make([]Worker, 1)}
}

// name is w's name in the generation.
func (g *generation) name(w Worker) uint32 {
	for int(w) >= len(g.names) {
		g.names = append(g.names, 0)
	}
	if g.names[w] == 0 {
		g.names[w] = uint32(len(g.main))
		g.main = append(g.main, w)
	}
	return g.names[w]
}

// Forget drops all entries of w, e.g. because it is gone.
func (o *Overlay) Forget(w Worker) {
	for _, g := range [...]*generation{o.young, o.old} {
		if g != nil && int(w) < len(g.names) {
			g.main[g.names[w]] = MaxWorkers
			g.names[w] = 0
		}
	}
}

// Raise lifts the hits of a lookup of chain to what the overlay knows.
func (o *Overlay) Raise(chain []Hash, h *Hits, now time.Time) {
	for _, g := range [...]*generation{o.young, o.old} {
		if g == nil || now.Sub(g.born) > 2*o.ttl {
			continue
		}
		g.walk(chain, func(blocks int, s *stem) {
			h.raise(g.main[s.first], int32(blocks))
			for _, name := range s.more {
				h.raise(g.main[name], int32(blocks))
			}
		})
	}
}

// raise makes w's hit at least blocks.
func (h *Hits) raise(w Worker, blocks int32) {
	if int(w) >= len(h.Blocks) {
		return
	}
	if h.Blocks[w] == 0 {
		h.Workers = append(h.Workers, w)
	}
	h.Blocks[w] = max(h.Blocks[w], blocks)
}
