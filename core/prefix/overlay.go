package prefix

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/core/unit"
)

// Overlay is one gateway's own guess of what its recent decisions have put into
// the workers' caches: between choosing a worker and the worker's first event,
// requests that share the prompt already find each other. An entry lives for one
// to two TTLs. It is never replicated.
//
// A decision enters a chain from its first block, so a worker's hit is the
// longer of what the index and the overlay know.
type Overlay struct {
	ttl    time.Duration
	budget unit.Bytes

	mu    sync.Mutex
	young atomic.Pointer[generation]
	old   atomic.Pointer[generation]
}

// generation is what was entered within one TTL. Its index numbers workers by
// itself; of maps from the numbers of the main index.
type generation struct {
	born    time.Time
	index   *Index
	of      []atomic.Uint32 // by main Worker: own Worker plus one
	main    []atomic.Uint32 // by own Worker: main Worker
	entered atomic.Bool
}

// NewOverlay is an overlay whose entries live for at least ttl, in at most
// budget bytes.
func NewOverlay(ttl time.Duration, budget unit.Bytes) *Overlay {
	return &Overlay{ttl: ttl, budget: budget / 2}
}

func (o *Overlay) fresh(now time.Time) *generation {
	return &generation{
		born: now, index: New(Options{Budget: o.budget, Workers: MaxWorkers}),
		of: make([]atomic.Uint32, MaxWorkers), main: make([]atomic.Uint32, MaxWorkers),
	}
}

// Add enters that w is about to hold chain.
func (o *Overlay) Add(w Worker, chain []Hash, now time.Time) {
	if len(chain) == 0 || int(w) >= MaxWorkers {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.turn(now)
	g := o.young.Load()
	own := g.of[w].Load()
	if own == 0 {
		fresh, err := g.index.Attach(uint64(w))
		if err != nil {
			return // it cannot be: there are as many numbers as workers
		}
		own = uint32(fresh) + 1
		g.main[fresh].Store(uint32(w))
		g.of[w].Store(own)
	}
	g.index.Store(Worker(own-1), chain)
	g.entered.Store(true)
}

// turn makes the young generation old when its time has come.
func (o *Overlay) turn(now time.Time) {
	g := o.young.Load()
	switch {
	case g == nil:
		o.young.Store(o.fresh(now))
	case now.Sub(g.born) < o.ttl:
	default:
		o.old.Store(nil)
		if now.Sub(g.born) < 2*o.ttl && g.entered.Load() {
			o.old.Store(g)
		}
		o.young.Store(o.fresh(now))
	}
}

// Forget drops all entries of w, e.g. because it is gone.
func (o *Overlay) Forget(w Worker) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, g := range []*generation{o.young.Load(), o.old.Load()} {
		if g == nil || int(w) >= len(g.of) {
			continue
		}
		if own := g.of[w].Load(); own != 0 {
			g.index.Clear(Worker(own - 1))
		}
	}
}

// Raise lifts the hits of a lookup of chain to what the overlay knows. scratch
// is for the overlay's own lookups.
func (o *Overlay) Raise(chain []Hash, h, scratch *Hits, now time.Time) {
	for _, g := range []*generation{o.young.Load(), o.old.Load()} {
		if g == nil || !g.entered.Load() || now.Sub(g.born) > 2*o.ttl {
			continue
		}
		g.index.LookupClosed(chain, scratch)
		for _, own := range scratch.Workers {
			h.raise(Worker(g.main[own].Load()), scratch.Blocks[own])
		}
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
