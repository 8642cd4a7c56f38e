package prefix

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/unit"
)

// TrackerOptions configure a [Tracker]. Zero fields take their defaults.
type TrackerOptions struct {
	// Tracks says whether a worker's cache has to be guessed, because its engine
	// publishes no KV events. Nil tracks every worker.
	Tracks func(*fleet.Worker) bool
	// Budget bounds the memory of the tracker's index; 0 means 64 MiB.
	Budget unit.Bytes
	// Stride is how many blocks of a chain are remembered as one; 0 means 8. What
	// is remembered is a guess, so its grain may be coarse, and it costs that much
	// less to look up and keep.
	Stride int
	// Blocks bounds what is remembered for all workers together, in blocks of the
	// stride; 0 means 512k. Each costs about 100 bytes beside the index. No worker's
	// share is larger than Blocks divided by the number of workers tracked, nor
	// smaller than 4,096 tokens.
	Blocks unit.Blocks
	// Registry gets the counts of predicted and actual hits; nil is one of the
	// tracker's own.
	Registry *measure.Registry
}

func (o TrackerOptions) withDefaults() TrackerOptions {
	if o.Budget == 0 {
		o.Budget = 64 << 20
	}
	if o.Stride <= 0 {
		o.Stride = 8
	}
	if o.Blocks == 0 {
		o.Blocks = 512 << 10
	}
	if o.Registry == nil {
		o.Registry = &measure.Registry{}
	}
	return o
}

// Tracker guesses what the engines that publish no KV events hold, from this
// gateway's own decisions, and corrects itself by the cached tokens that they
// report: one [Cache] for each incarnation. Its [Tracker.Table] is read like the
// replicated one, beside it. It is safe for concurrent use.
type Tracker struct {
	options TrackerOptions
	index   *Index
	table   atomic.Pointer[Table]
	view    atomic.Pointer[fleet.View] // last followed

	mu      sync.Mutex
	workers map[fleet.WorkerID]*guess
	version uint64
}

// guess is what is believed of one incarnation.
type guess struct {
	id     fleet.WorkerID
	epoch  fleet.Epoch
	worker Worker
	known  bool // the engine's capacity was declared
	stride int
	least  unit.Blocks // the smallest capacity that is guessed

	mu       sync.Mutex // never held together with another guess's
	cache    *Cache
	chain    []Hash      // scratch
	most     unit.Blocks // the share of the tracker's blocks
	gone     bool
	evidence float64 // predicted tokens that a report was compared with, decaying
	legs     uint64
	degraded atomic.Bool

	predicted, actual measure.Counter
	trust             func(share float64)
	doubt             measure.Gauge
}

// NewTracker is a tracker of no workers; [Tracker.Follow] gives it some.
func NewTracker(o TrackerOptions) *Tracker {
	o = o.withDefaults()
	t := &Tracker{options: o, index: New(Options{Budget: o.Budget}), workers: map[fleet.WorkerID]*guess{}}
	t.table.Store(&Table{Index: t.index, Stride: o.Stride})
	return t
}

// Table says which number of the tracker's index means which incarnation. A row
// is Exact while reports bear the guess out, and not once it is degraded.
func (t *Tracker) Table() *Table { return t.table.Load() }

// Follow makes the tracker know the workers of view and forget those that are
// gone. For the view it was last called with it is one load.
func (t *Tracker) Follow(view *fleet.View) {
	if t.view.Load() == view {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if last := t.view.Load(); last != nil && last.Index > view.Index {
		return // a late reader of an older view
	}
	for id, g := range t.workers {
		if view.Current(id, g.epoch) < 0 {
			t.drop(g)
		}
	}
	var fresh []*fleet.Worker
	for i := range view.Workers {
		w := &view.Workers[i]
		if t.workers[w.ID] == nil && (t.options.Tracks == nil || t.options.Tracks(w)) {
			fresh = append(fresh, w)
		}
	}
	share := max(t.options.Blocks/unit.Blocks(max(len(t.workers)+len(fresh), 1)), t.options.blocks(leastCapacity))
	for _, g := range t.workers {
		g.limit(share)
	}
	for _, w := range fresh {
		if t.join(w, share) != nil {
			break // the rest stays unknown until a number is free
		}
	}
	t.publish()
	t.view.Store(view)
}

// The capacities, in tokens, of an engine that declares none: where the guess
// begins, and how little it may come to. It begins high: a guess that forgets what
// the engine still holds sends its prompts elsewhere, and never learns it.
const (
	firstCapacity unit.Tokens = 2 << 20
	leastCapacity unit.Tokens = 4096
	// measureEach is how many legs share one measurement of a depth, which walks
	// the list of what is remembered.
	measureEach = 16
	// usualBlock is the tokens of a block of a chain.
	usualBlock unit.Tokens = 16
)

// blocks is how many blocks of the stride hold that many tokens.
func (o *TrackerOptions) blocks(n unit.Tokens) unit.Blocks {
	return max(1, unit.Blocks(n/(usualBlock*unit.Tokens(o.Stride))))
}

func (t *Tracker) join(w *fleet.Worker, share unit.Blocks) error {
	number, err := t.index.Attach(uint64(w.Epoch))
	if err != nil {
		return err
	}
	g := &guess{
		id: w.ID, epoch: w.Epoch, worker: number, most: share, known: w.Capacity.KVBlocks > 0,
		stride: t.options.Stride, least: t.options.blocks(leastCapacity),
	}
	capacity := t.options.blocks(firstCapacity)
	if g.known {
		block := usualBlock
		if w.Capacity.BlockTokens > 0 {
			block = w.Capacity.BlockTokens
		}
		capacity = t.options.blocks(unit.Tokens(w.Capacity.KVBlocks) * block)
	}
	g.cache = NewCache(t.index, number, min(capacity, share))
	r, name := t.options.Registry, string(w.ID)
	g.predicted, g.actual = r.Counter(measure.PrefixPredicted, name), r.Counter(measure.PrefixReported, name)
	g.doubt = r.Gauge(measure.PrefixDegraded, name)
	// The gauge of trust appears with the first report: until then it is unknown.
	g.trust = func(share float64) { r.Gauge(measure.PrefixTrust, name).Set(share) }
	g.doubt.Set(0)
	t.workers[w.ID] = g
	return nil
}

func (t *Tracker) drop(g *guess) {
	g.mu.Lock()
	g.gone = true
	g.mu.Unlock()
	t.options.Registry.Forget(measure.PrefixTrust, "worker", string(g.id))
	t.options.Registry.Forget(measure.PrefixDegraded, "worker", string(g.id))
	t.index.Detach(g.worker)
	t.index.Sweep(sweepEach)
	delete(t.workers, g.id)
}

// publish makes a new table.
func (t *Tracker) publish() {
	t.version++
	table := &Table{Index: t.index, Stride: t.options.Stride, Version: t.version, rows: make([]Row, 0, len(t.workers))}
	for _, g := range t.workers {
		table.rows = append(table.rows, Row{ID: g.id, Epoch: g.epoch, Worker: g.worker, Exact: !g.degraded.Load()})
	}
	slices.SortFunc(table.rows, func(a, b Row) int { return cmp.Compare(a.ID, b.ID) })
	t.table.Store(table)
}

// Ticket is one leg that was sent, from [Tracker.Dispatched] to
// [Tracker.Finished]. The zero Ticket is of a worker that is not tracked.
type Ticket struct {
	guess     *guess
	predicted unit.Blocks
	depth     unit.Blocks // blocks used since the last predicted one was; 0 is not measured
}

// Dispatched says that the incarnation is about to compute a prompt of these
// blocks. Call it at once after the decision, so that the next decision knows;
// the index keeps no reference to chain.
func (t *Tracker) Dispatched(id fleet.WorkerID, epoch fleet.Epoch, chain []Hash) Ticket {
	g := t.find(id, epoch)
	if g == nil || len(chain) == 0 {
		return Ticket{}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if chain = g.stridden(chain); g.gone || len(chain) == 0 {
		return Ticket{}
	}
	k := Ticket{guess: g, predicted: unit.Blocks(g.cache.Known(chain))}
	if g.legs++; !g.known && k.predicted > 0 && g.legs%measureEach == 0 {
		k.depth = g.cache.depth(chain[k.predicted-1])
	}
	g.cache.Touch(chain)
	t.index.Sweep(1)
	return k
}

// stridden are the blocks of the stride that make up chain, without what is left
// over at its end. The caller holds the lock.
func (g *guess) stridden(chain []Hash) []Hash {
	if g.stride == 1 {
		return chain
	}
	g.chain = AppendStride(g.chain[:0], chain, g.stride)
	return g.chain
}

// AppendStride appends the hash of every stride-th block of a chain to dst: what a
// [Table] of that stride is asked for.
func AppendStride(dst, chain []Hash, stride int) []Hash {
	for i := stride - 1; i < len(chain); i += stride {
		dst = append(dst, chain[i])
	}
	return dst
}

func (t *Tracker) find(id fleet.WorkerID, epoch fleet.Epoch) *guess {
	t.mu.Lock()
	defer t.mu.Unlock()
	if g := t.workers[id]; g != nil && g.epoch == epoch {
		return g
	}
	return nil
}

// Served is what an engine reports of a prompt that it has computed.
type Served struct {
	Prompt unit.Tokens
	// Cached is the part of Prompt that it had in its prefix cache.
	Cached unit.Tokens
	// Known is whether it reported Cached at all. Unknown is not none.
	Known bool
}

// Finished compares the guess with what the engine reports. chain is the one
// that the ticket was given for. A leg that failed needs no call.
func (t *Tracker) Finished(k Ticket, chain []Hash, s Served) {
	if k.guess == nil || !s.Known || s.Prompt <= 0 || len(chain) == 0 {
		return
	}
	if k.guess.report(k, chain, s) {
		t.mu.Lock()
		t.publish()
		t.mu.Unlock()
	}
}

// report reports whether the worker became degraded, or is no longer.
func (g *guess) report(k Ticket, chain []Hash, s Served) (turned bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if chain = g.stridden(chain); g.gone || len(chain) == 0 {
		return false
	}
	total := int64(len(chain))
	cached := unit.Blocks((min(int64(s.Cached), int64(s.Prompt))*total + int64(s.Prompt) - 1) / int64(s.Prompt))
	expected := float64(k.predicted) / float64(total) * float64(s.Prompt)
	g.predicted.Add(expected)
	g.actual.Add(float64(min(max(s.Cached, 0), s.Prompt)))
	g.learn(k, cached)
	g.cache.Report(chain, k.predicted, cached, s.Prompt)
	g.evidence = evidenceDecay*g.evidence + expected
	return g.judge()
}

const (
	evidenceDecay = 0.98 // as Cache.Report's
	// leastEvidence is how many predicted tokens must have been compared before a
	// worker is called degraded.
	leastEvidence = 4096
	// A worker is degraded when less than degradedBelow of what was predicted
	// came true, until more than soundAbove does.
	degradedBelow, soundAbove = 0.5, 0.7
)

func (g *guess) judge() (turned bool) {
	share, ok := g.cache.Trust()
	if !ok {
		return false
	}
	g.trust(share)
	was := g.degraded.Load()
	now := was
	switch {
	case share < degradedBelow && g.evidence >= leastEvidence:
		now = true
	case share > soundAbove:
		now = false
	}
	if now == was {
		return false
	}
	g.degraded.Store(now)
	if now {
		g.doubt.Set(1)
	} else {
		g.doubt.Set(0)
	}
	return true
}

// learn moves the capacity that is taken for declared when none was. A block
// that was predicted and is gone proves that the engine holds fewer than were
// used since it was; one that was not predicted and is there, or that lay near
// the end of what is remembered, lets the capacity grow.
func (g *guess) learn(k Ticket, cached unit.Blocks) {
	if g.known {
		return
	}
	declared := unit.Blocks(g.cache.declared)
	depth := k.depth - (k.predicted - 1 - cached) // of the first block that was gone
	switch {
	case cached+1 < k.predicted:
		if k.depth > 0 && depth < declared {
			g.cache.redeclare(max(declared-max((declared-depth)/4, 1), g.least))
		}
	case g.cache.Len()+declared/16 < declared:
		// What is not full is not too small.
	case cached > k.predicted+1 || k.depth > declared-declared/8:
		g.cache.redeclare(min(declared+declared/32+1, g.most))
	}
}

func (g *guess) limit(share unit.Blocks) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.most = share
	if unit.Blocks(g.cache.declared) > share {
		g.cache.redeclare(share)
	}
}
