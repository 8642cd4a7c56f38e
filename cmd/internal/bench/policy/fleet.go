package policy

import (
	"math"

	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/policies/abi"
)

// made is a made-up fleet in both forms: as columns, and as a slice of pointers.
type made struct {
	query   route.Query
	columns route.Columns
	cost    []float64
	workers []*worker
	score   func(q *route.Query, w *worker) float64
}

// worker is a worker as routers usually have it, with what else they keep of it.
type worker struct {
	name, url string
	labels    map[string]string // not read here: it takes its place in the cache lines, as it does elsewhere; likewise below
	healthy   bool
	inFlight  int
	load      burden
	cache     struct{ hit float64 }
}

type burden struct {
	queued, running float64
	waiting, rate   float64
	active          float64
	capacity        float64
}

// newFleet makes n workers. All numbers are whole blocks, so that float32 holds every
// cost exactly and the forms agree to the last bit.
func newFleet(n int, seed uint64) *made {
	const blockTokens = 16
	rng := draw(seed)
	f := &made{
		query:   route.Query{Model: "model", Prompt: 2048, BlockTokens: blockTokens, Session: rng.Uint64()},
		columns: route.Columns{Worker: make([]int32, n), Key: make([]uint64, n)},
		cost:    make([]float64, n), workers: make([]*worker, n), score: kvCost,
	}
	c := &f.columns
	for _, column := range []*[]float64{
		&c.InFlight, &c.Requests, &c.Queued, &c.Hit, &c.Active, &c.Capacity, &c.Running, &c.Waiting, &c.Rate, &c.Share,
	} {
		*column = make([]float64, n)
	}
	// Pointers do not lie in the order of the slice once workers have come and gone.
	for _, i := range rng.Perm(n) {
		c.Key[i] = rng.Uint64()
		c.Queued[i] = float64(blockTokens * rng.IntN(1000))
		c.Hit[i] = float64(blockTokens * rng.IntN(128))
		c.Active[i] = float64(rng.IntN(4000))
		c.Requests[i] = float64(rng.IntN(64))
		w := &worker{name: "worker", url: "http://worker:8000", healthy: true, inFlight: int(c.Requests[i])}
		w.load.queued, w.load.active, w.cache.hit = c.Queued[i], c.Active[i], c.Hit[i]
		w.labels, w.load.running, w.load.waiting, w.load.rate, w.load.capacity = nil, c.Running[i], c.Waiting[i], c.Rate[i], c.Capacity[i]
		f.workers[i] = w
	}
	return f
}

// kvCost is route.KVCost of one worker.
func kvCost(q *route.Query, w *worker) float64 {
	if !w.healthy {
		return math.NaN()
	}
	n, b := float64(q.Prompt), float64(q.BlockTokens)
	return 8*max(0, (w.load.queued+n-w.cache.hit)/b) + w.load.active + (n-w.cache.hit)/b
}

// native decides over columns.
func (f *made) native() int {
	route.KVCost{}.Score(&f.query, &f.columns, f.cost)
	return lowest(f.cost)
}

// by decides by a policy.
func (f *made) by(p route.Policy) int {
	p.Score(&f.query, &f.columns, f.cost)
	return lowest(f.cost)
}

// lowest is the place of the lowest cost.
func lowest(cost []float64) int {
	best, least := -1, math.Inf(1)
	for i, v := range cost {
		if v < least {
			best, least = i, v
		}
	}
	return best
}

// usual decides over a slice of pointers, a call for each.
func (f *made) usual() int {
	best, least := -1, math.Inf(1)
	for i, w := range f.workers {
		if v := f.score(&f.query, w); v < least {
			best, least = i, v
		}
	}
	return best
}

// fuel is what a decision uses.
func (f *made) fuel(g *guest) int64 {
	f.by(g.router)
	in := g.policy.Take()
	if in == nil {
		return 0
	}
	defer g.policy.Put(in)
	r := abi.RouterRequest{Prompt: uint32(f.query.Prompt), BlockTokens: uint32(f.query.BlockTokens)}
	r.Put(in.Request())
	if _, err := in.Score(len(f.cost)); err != nil {
		return 0
	}
	return in.Used()
}
