package prefix

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/mix"
	"github.com/yardmaster/yardmaster/core/unit"
)

func chainOf(kind, n int) []Hash {
	chain := make([]Hash, n)
	for i := range chain {
		chain[i] = Hash(mix.Next(uint64(kind)<<32 + uint64(i)))
	}
	return chain
}

// guessed is how many leading blocks of chain the tracker believes id to hold.
func guessed(t *Tracker, id fleet.WorkerID, epoch fleet.Epoch, chain []Hash) int {
	table := t.Table()
	row, ok := table.Find(id, epoch)
	if !ok {
		return -1
	}
	var hits Hits
	table.Index.Lookup(chain, &hits)
	return hits.Of(row.Worker)
}

func viewOf(index uint64, workers ...fleet.Worker) *fleet.View { return fleet.NewView(index, workers) }

func attachedByURL(id fleet.WorkerID, epoch fleet.Epoch, blocks unit.Blocks) fleet.Worker {
	return fleet.Worker{
		ID: id, Epoch: epoch, Engine: "openai", Models: []string{"m"},
		Capacity: fleet.Capacity{KVBlocks: blocks, BlockTokens: 16},
	}
}

func TestTrackerFollowsTheFleet(t *testing.T) {
	tr := NewTracker(TrackerOptions{Stride: 1, Tracks: func(w *fleet.Worker) bool { return w.Engine == "openai" }})
	host := fleet.Worker{ID: "own", Epoch: 3, Engine: "cpu", Models: []string{"m"}}
	tr.Follow(viewOf(5, attachedByURL("a", 1, 100), attachedByURL("b", 2, 100), host))
	chain := chainOf(1, 10)
	tr.Dispatched("a", 1, chain)
	if n := guessed(tr, "a", 1, chain[:7]); n != 7 {
		t.Errorf("a holds %d of 7 blocks", n)
	}
	if n := guessed(tr, "b", 2, chain); n != 0 {
		t.Errorf("b holds %d blocks that it never got", n)
	}
	if n := guessed(tr, "own", 3, chain); n != -1 {
		t.Error("a worker that publishes events is tracked")
	}
	k := tr.Dispatched("own", 3, chain)
	tr.Finished(k, chain, Served{Prompt: 160, Cached: 16, Known: true})

	// a restarted on the same address: nothing said of the old one holds.
	late := tr.Dispatched("a", 1, chain)
	tr.Follow(viewOf(9, attachedByURL("a", 8, 100), attachedByURL("b", 2, 100)))
	if n := guessed(tr, "a", 8, chain); n != 0 {
		t.Errorf("the new incarnation holds %d blocks", n)
	}
	tr.Finished(late, chain, Served{Prompt: 160, Known: true})
	if k := tr.Dispatched("a", 1, chain); k.guess != nil {
		t.Error("an incarnation that is gone is still tracked")
	}
	// A late reader of an older view changes nothing.
	tr.Follow(viewOf(5, attachedByURL("a", 1, 100)))
	if n := guessed(tr, "a", 8, chain); n != 0 {
		t.Error("an older view replaced a newer one")
	}
	tr.Follow(viewOf(10))
	if rows := tr.Table().Rows(); len(rows) != 0 {
		t.Errorf("%d workers of an empty fleet", len(rows))
	}
}

// engineCache is what a real engine does: a plain LRU of blocks.
type engineCache struct {
	capacity int
	at       map[Hash]int
	now      int
}

func (e *engineCache) serve(chain []Hash) (cached int) {
	for cached < len(chain) && e.at[chain[cached]] != 0 {
		cached++
	}
	for _, h := range slices.Backward(chain) {
		e.now++
		e.at[h] = e.now
	}
	for len(e.at) > e.capacity {
		oldest, when := Hash(0), e.now+1
		for h, n := range e.at {
			if n < when {
				oldest, when = h, n
			}
		}
		delete(e.at, oldest)
	}
	return cached
}

// An engine that declares nothing and holds far less than is assumed: the guess
// must come down to it, say so meanwhile, and be right in the end.
func TestTrackerLearnsACapacityNobodyDeclared(t *testing.T) {
	r := &measure.Registry{}
	tr := NewTracker(TrackerOptions{Stride: 1, Registry: r})
	tr.Follow(viewOf(1, attachedByURL("a", 1, 0)))
	engine := &engineCache{capacity: 600, at: map[Hash]int{}}
	rng := rand.New(rand.NewPCG(1, 2))
	sawDoubt := false
	var predicted, actual float64
	const rounds = 1500
	for i := range rounds {
		chain := chainOf(rng.IntN(100), 30) // 3000 blocks in all: one in five fits
		k := tr.Dispatched("a", 1, chain)
		cached := engine.serve(chain)
		if i > rounds*3/4 {
			predicted += float64(k.predicted)
			actual += float64(min(cached, int(k.predicted)))
		}
		tr.Finished(k, chain, Served{Prompt: 480, Cached: unit.Tokens(cached) * 16, Known: true})
		sawDoubt = sawDoubt || r.Gauge(measure.PrefixDegraded, "a").Value() == 1
	}
	if !sawDoubt {
		t.Error("most predictions were wrong, and the worker was never degraded")
	}
	g := tr.workers["a"]
	t.Logf("capacity %d of %d, predicted %.0f, came true %.0f", g.cache.Capacity(), engine.capacity, predicted, actual)
	if c := g.cache.Capacity(); c > 1200 {
		t.Errorf("it still takes the engine for one of %d blocks, which has %d", c, engine.capacity)
	}
	if actual < 0.7*predicted {
		t.Errorf("in the end %.0f blocks were predicted and %.0f were there", predicted, actual)
	}
	if row, _ := tr.Table().Find("a", 1); !row.Exact {
		t.Error("degraded although predictions come true")
	}
}

// An engine that does not report cached tokens is not one that has none.
func TestUnknownIsNotNone(t *testing.T) {
	r := &measure.Registry{}
	tr := NewTracker(TrackerOptions{Stride: 1, Registry: r})
	tr.Follow(viewOf(1, attachedByURL("a", 1, 1000)))
	chain := chainOf(1, 50)
	for range 200 {
		k := tr.Dispatched("a", 1, chain)
		tr.Finished(k, chain, Served{Prompt: 800})
	}
	if row, _ := tr.Table().Find("a", 1); !row.Exact || guessed(tr, "a", 1, chain) != 50 {
		t.Error("silence was taken for a miss")
	}
	if n := r.Counter(measure.PrefixPredicted, "a").Value(); n != 0 {
		t.Errorf("%.0f predicted tokens compared with nothing", n)
	}
	for range 200 {
		k := tr.Dispatched("a", 1, chain)
		tr.Finished(k, chain, Served{Prompt: 800, Known: true})
	}
	if row, _ := tr.Table().Find("a", 1); row.Exact {
		t.Error("reported misses did not degrade the worker")
	}
	p, a := r.Counter(measure.PrefixPredicted, "a").Value(), r.Counter(measure.PrefixReported, "a").Value()
	if p != 200*800 || a != 0 {
		t.Errorf("predicted %.0f, reported %.0f", p, a)
	}
}

func TestTrackerIsBounded(t *testing.T) {
	tr := NewTracker(TrackerOptions{Stride: 1, Blocks: 4000})
	var workers []fleet.Worker
	for i := range 8 {
		workers = append(workers, attachedByURL(fleet.WorkerID(fmt.Sprint("w", i)), 1, 1<<20))
	}
	tr.Follow(viewOf(1, workers[:2]...))
	for kind := range fewer(1000, 300) {
		for i := range 2 {
			tr.Dispatched(workers[i].ID, 1, chainOf(kind*8+i, 100))
		}
	}
	tr.Follow(viewOf(2, workers...))
	sum := unit.Blocks(0)
	for _, g := range tr.workers {
		sum += g.cache.Len()
	}
	if sum > 4000 {
		t.Errorf("%d blocks remembered, at most 4000 are allowed", sum)
	}
}

func TestTrackerUnderConcurrentUse(t *testing.T) {
	tr := NewTracker(TrackerOptions{Stride: 1})
	views := []*fleet.View{
		viewOf(1, attachedByURL("a", 1, 500), attachedByURL("b", 2, 0)),
		viewOf(2, attachedByURL("a", 1, 500)),
		viewOf(4, attachedByURL("a", 1, 500), attachedByURL("b", 3, 0)),
	}
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(n), 1))
			for i := range 500 {
				tr.Follow(views[min(i/150, 2)])
				chain := chainOf(rng.IntN(20), 1+rng.IntN(60))
				id, epoch := fleet.WorkerID("a"), fleet.Epoch(1)
				if rng.IntN(2) == 0 {
					id, epoch = "b", fleet.Epoch(2+rng.IntN(2))
				}
				k := tr.Dispatched(id, epoch, chain)
				guessed(tr, id, epoch, chain)
				tr.Finished(k, chain, Served{Prompt: unit.Tokens(16 * len(chain)), Cached: unit.Tokens(rng.IntN(1000)), Known: rng.IntN(3) > 0})
			}
		})
	}
	all.Wait()
}

func BenchmarkTracker(b *testing.B) {
	tr := NewTracker(TrackerOptions{Stride: 1})
	tr.Follow(viewOf(1, attachedByURL("a", 1, 100_000)))
	chain := chainOf(1, 750)
	b.ReportAllocs()
	for b.Loop() {
		k := tr.Dispatched("a", 1, chain)
		tr.Finished(k, chain, Served{Prompt: 12_000, Cached: 11_984, Known: true})
	}
}
