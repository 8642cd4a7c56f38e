package route

import (
	"math"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/unit"
)

// Caches is what is known of the workers' KV caches when a decision is made.
type Caches struct {
	// Events is the index fed by the workers' KV events; nil when there is none.
	Events *prefix.Table
	// Guess is the index of what engines without events are believed to hold; it
	// answers for the workers that Events does not know. nil when there is none.
	Guess *prefix.Table
}

// source says which index answers for a worker.
type source uint8

const (
	nowhere source = iota
	fromEvents
	fromGuess
	sources
)

// facts are what is known of a worker beside its load, lined up with a view.
type facts struct {
	key      uint64 // hash of its id
	role     fleet.Role
	draining bool
	moves    bool   // it exchanges KV
	compat   uint32 // names its compatibility group in this view; 0 is none
	source   source
	number   prefix.Worker // in the source's index
	trust    float64       // what a hit is worth: less than 1 when the source is doubtful

	running, waiting, rate float64 // NaN is unknown
	active, capacity       float64 // KV blocks; capacity NaN is unknown
	step                   float64 // seconds; NaN is unknown
	tokenBytes, slots      float64 // by label; NaN is unknown
	zone                   uint32  // by label; 0 is unknown
	heard                  int64   // unix nanoseconds when it last said something; 0 is never
}

// aligned keeps the facts, by worker of a view. It reads a source again only
// when that has published something new.
type aligned struct {
	view    *fleet.View
	samples *fleet.Samples
	caches  Caches
	facts   []facts
	version uint64 // rises when facts change
	rosters map[string]*rosters
	any     [sources]bool // whether some worker's cache is known from there

	owners []owner // of the numbers in Events, by number
}

// owner is the incarnation that a number of the events' index meant.
type owner struct {
	id    fleet.WorkerID
	epoch fleet.Epoch
}

// doubtful is what a predicted hit counts while the predictions for a worker
// are mostly wrong.
const doubtful = 0.5

// follow lines everything up. It allocates only when the view or a table is
// new. moved is called with each number of the events' index that means another
// incarnation than before.
func (a *aligned) follow(lined *load.Columns, samples *fleet.Samples, caches Caches, moved func(prefix.Worker)) {
	newView := a.view != lined.View
	if newView {
		a.view = lined.View
		a.begin()
	}
	if newView || a.caches != caches {
		a.version++
		a.followCaches(caches, moved)
	}
	if newView || a.samples != samples {
		a.version++
		a.followSamples(lined, samples)
	}
}

// begin lines up with a new view.
func (a *aligned) begin() {
	a.facts, a.rosters = make([]facts, len(a.view.Workers)), map[string]*rosters{}
	groups := map[string]uint32{"": 0}
	for i := range a.facts {
		w, f := &a.view.Workers[i], &a.facts[i]
		f.begin(w)
		group, ok := groups[w.Compat]
		if !ok {
			group = uint32(len(groups))
			groups[w.Compat] = group
		}
		f.compat, f.moves = group, w.Transfer != ""
	}
}

// KeyOf is a worker's key in [Columns.Key].
func KeyOf(id fleet.WorkerID) uint64 { return xxhash.Sum64String(string(id)) }

func (f *facts) begin(w *fleet.Worker) {
	f.key, f.role, f.draining = KeyOf(w.ID), w.Role, w.Draining
	f.running, f.waiting, f.rate, f.capacity, f.step = math.NaN(), math.NaN(), math.NaN(), math.NaN(), math.NaN()
	f.tokenBytes = labelled(w, LabelKVTokenBytes, maxTokenBytes)
	f.slots = labelled(w, LabelAdapterSlots, maxAdapterSlots)
	f.zone = zoneOf(w)
	if w.Capacity.KVBlocks > 0 {
		f.capacity = float64(w.Capacity.KVBlocks)
	}
}

func (a *aligned) followCaches(caches Caches, moved func(prefix.Worker)) {
	a.caches, a.any = caches, [sources]bool{}
	for i := range a.view.Workers {
		w, f := &a.view.Workers[i], &a.facts[i]
		f.source = nowhere
		if row, ok := find(caches.Events, w); ok {
			f.source, f.number, f.trust = fromEvents, row.Worker, 1
		} else if row, ok := find(caches.Guess, w); ok {
			f.source, f.number, f.trust = fromGuess, row.Worker, 1
			if !row.Exact {
				f.trust = doubtful
			}
		}
		a.any[f.source] = true
	}
	if caches.Events == nil {
		return
	}
	for _, row := range caches.Events.Rows() {
		for int(row.Worker) >= len(a.owners) {
			a.owners = append(a.owners, owner{})
		}
		now, before := owner{row.ID, row.Epoch}, &a.owners[row.Worker]
		if *before != now {
			if *before != (owner{}) {
				moved(row.Worker)
			}
			*before = now
		}
	}
}

func find(t *prefix.Table, w *fleet.Worker) (prefix.Row, bool) {
	if t == nil {
		return prefix.Row{}, false
	}
	return t.Find(w.ID, w.Epoch)
}

// followSamples walks workers and samples, both ordered by id.
func (a *aligned) followSamples(lined *load.Columns, samples *fleet.Samples) {
	a.samples = samples
	all := samples.All()
	for i := range a.view.Workers {
		w := &a.view.Workers[i]
		for len(all) > 0 && all[0].ID < w.ID {
			all = all[1:]
		}
		if len(all) == 0 || all[0].ID != w.ID || all[0].Epoch != w.Epoch {
			a.facts[i].hear(w, &fleet.Stats{})
			a.facts[i].heard = 0
			lined.Slots[i].Unheard()
			continue
		}
		a.facts[i].hear(w, &all[0].Stats)
		a.facts[i].heard = all[0].At.UnixNano()
		hear(lined.Slots[i], all[0].At, &all[0].Stats)
	}
}

func hear(slot *load.Slot, at time.Time, s *fleet.Stats) {
	running, known := s.Running.Usable()
	waiting, _ := s.Waiting.Usable()
	if !known {
		slot.Unheard()
		return
	}
	slot.Hear(at, running+waiting)
}

// lookup is the scratch space of the questions to the indices.
type lookup struct {
	events, guess   prefix.Hits
	chain, stridden []prefix.Hash
	stride          int // of the guess
	blockTokens     float64
	perToken        float64 // blocks
	prompt          float64
	crowd           crowd
}

// ask looks the prompt up in every index that answers for a worker of the view.
func (l *lookup) ask(a *aligned, overlay *prefix.Overlay, q *Query) {
	l.chain, l.prompt = q.Chain, float64(q.Prompt)
	l.blockTokens = float64(max(q.BlockTokens, 1))
	if q.BlockTokens <= 0 {
		l.blockTokens = float64(usualBlock)
	}
	l.perToken = 1 / l.blockTokens
	if len(q.Chain) == 0 {
		return
	}
	if a.any[fromEvents] {
		a.caches.Events.Index.Lookup(q.Chain, &l.events)
		if overlay != nil {
			overlay.Raise(q.Chain, &l.events, q.Now)
		}
	}
	if a.any[fromGuess] {
		l.stride = max(a.caches.Guess.Stride, 1)
		l.stridden = prefix.AppendStride(l.stridden[:0], q.Chain, l.stride)
		a.caches.Guess.Index.Lookup(l.stridden, &l.guess)
	}
}

// hit is the tokens of the prompt that a worker is believed to hold.
func (l *lookup) hit(source source, number prefix.Worker, trust float64) float64 {
	if len(l.chain) == 0 {
		return 0
	}
	var blocks int
	switch source {
	case fromEvents:
		blocks = l.events.Of(number)
	case fromGuess:
		blocks = l.guess.Of(number) * l.stride
	case nowhere, sources:
	}
	return min(float64(blocks)*l.blockTokens*trust, l.prompt)
}

// fill writes the hits of the roster's workers.
func (l *lookup) fill(s *roster, hits []float64) {
	switch {
	case len(l.chain) == 0:
		clear(hits)
	case s.events && int(s.top) < len(l.events.Blocks):
		hitsOf(s.number, l.events.Blocks, l.blockTokens, l.prompt, hits)
	default:
		for k := range hits {
			hits[k] = l.hit(s.source[k], s.number[k], s.trust[k])
		}
	}
}

// predicted is a hit as whole tokens.
func predicted(hit float64) unit.Tokens { return unit.Tokens(hit) }
