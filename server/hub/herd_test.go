package hub

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/unit"
)

// herd is gateways with a router each before workers that are all alike, in
// virtual time. Sums go by core/load's own merger, each 5 ms one way; nothing of
// this is random but the requests.
type herd struct {
	t        *testing.T
	view     *fleet.View
	merger   *load.Merger // nil cuts the hub
	gateways []*herdGateway
	rng      *rand.Rand
	now      time.Time
	events   []herdEvent // by time
	turn     uint64
}

type herdGateway struct {
	table  *load.Table
	router *route.Router
	member *load.Member
	first  bool
	heard  uint64 // of its messages
}

type herdEvent struct {
	at time.Time
	do func()
}

type herdConfig struct {
	policy   route.Policy
	cut      bool
	seed     uint64
	gateways int
	workers  int
	spread   time.Duration // over which a burst arrives
	prompt   int           // blocks; half of it to twice of it
	one      bool          // all arrive at one gateway, another in each burst
	shared   bool          // all of a burst ask the same
}

func newHerd(t *testing.T, c herdConfig) *herd {
	h := &herd{t: t, view: workers(c.workers), rng: rand.New(rand.NewPCG(c.seed, 1)), now: time.Unix(1000, 0)}
	if !c.cut {
		h.merger = load.NewMerger()
		h.merger.Follow(h.view)
	}
	for i := range c.gateways {
		g := &herdGateway{table: load.NewTable(&measure.Registry{}), router: route.New(route.Config{Policy: c.policy, Mode: route.Never, Seed: c.seed*100 + uint64(i)}), first: true}
		g.table.Changes().Open()
		g.table.Columns(h.view)
		if h.merger != nil {
			var err error
			if g.member, err = h.merger.Join(fmt.Sprint(i), 1); err != nil {
				t.Fatal(err)
			}
		}
		h.gateways = append(h.gateways, g)
	}
	return h
}

func (h *herd) at(t time.Time, do func()) {
	i, _ := slices.BinarySearchFunc(h.events, t, func(e herdEvent, t time.Time) int {
		return cmp.Or(e.at.Compare(t), -1) // after those of the same time
	})
	h.events = slices.Insert(h.events, i, herdEvent{t, do})
}

// runUntil plays events up to end.
func (h *herd) runUntil(end time.Time) {
	for len(h.events) > 0 && !h.events[0].at.After(end) {
		e := h.events[0]
		h.events = h.events[1:]
		h.now = e.at
		e.do()
	}
	h.now = end
}

// transit is how long a message travels.
const transit = 200 * time.Microsecond

// exchange begins the messages of a gateway: each way every 5 ms, at its own
// times.
func (h *herd) exchange(g *herdGateway, end time.Time) {
	if h.merger == nil {
		return
	}
	var up, down func()
	up = func() {
		var v load.Vector
		if g.first {
			g.table.Changes().Whole(&v)
			g.first = false
		} else {
			g.table.Changes().Take(&v)
		}
		h.at(h.now.Add(transit), func() {
			if err := g.member.Update(&v); err != nil {
				h.t.Fatal(err)
			}
			if v.Whole || v.Len() > 0 {
				g.heard++
			}
		})
		if next := h.now.Add(every); next.Before(end) {
			h.at(next, up)
		}
	}
	down = func() {
		var v load.Vector
		fresh, err := g.member.Take(&v)
		if err != nil {
			h.t.Fatal(err)
		}
		heard := g.heard
		h.at(h.now.Add(transit), func() {
			if fresh {
				g.table.SetOthers(&v)
			}
			if extrapolate {
				g.table.Changes().Heard(heard, len(h.gateways))
			}
		})
		if next := h.now.Add(every); next.Before(end) {
			h.at(next, down)
		}
	}
	h.at(h.now.Add(time.Duration(h.rng.Int64N(int64(every)))), up)
	h.at(h.now.Add(time.Duration(h.rng.Int64N(int64(every)))), down)
}

var extrapolate = true

// send routes a request at a gateway, and ends it after its tokens' time.
func (h *herd) send(g *herdGateway, chain []prefix.Hash) (worker int) {
	h.turn++
	q := route.Query{Model: "m", Prompt: unit.Tokens(16 * len(chain)), Chain: chain, BlockTokens: 16, Turn: h.turn, Now: h.now}
	d, err := g.router.Decide(&q, g.table.Columns(h.view), nil, route.Caches{})
	if err != nil {
		h.t.Fatal(err)
	}
	r := d.Slots[d.Serve].Reserve(load.Prefill, load.Work{Prompt: q.Prompt, Context: q.Prompt})
	presence := g.router.Commit(&q, &d)
	h.at(h.now.Add(time.Duration(q.Prompt)*50*time.Microsecond), r.FirstToken)
	h.at(h.now.Add(time.Duration(200+h.rng.IntN(400))*time.Millisecond), func() {
		r.Close()
		presence.Leave()
	})
	return d.Serve
}

// bursts sends n bursts of 64, a second apart, and returns the busiest worker's
// share over the mean: the worst of any burst, and of all together.
func (h *herd) bursts(c herdConfig, n int) (worst, all float64) {
	const size = 64
	sum := make([]int, c.workers)
	begin := h.now
	for _, g := range h.gateways {
		h.exchange(g, begin.Add(time.Duration(n)*time.Second))
	}
	busiest := func(served []int, n int) float64 { return float64(slices.Max(served)*c.workers) / float64(n) }
	for b := range n {
		served := make([]int, c.workers)
		shared := h.text(c.prompt)
		for range size {
			g, chain := h.gateways[h.rng.IntN(c.gateways)], shared
			if c.one {
				g = h.gateways[b%c.gateways]
			}
			if !c.shared {
				chain = h.text(c.prompt/2 + h.rng.IntN(c.prompt*3/2+1))
			}
			at := begin.Add(time.Duration(b)*time.Second + time.Duration(h.rng.Int64N(int64(c.spread)+1)))
			h.at(at, func() {
				w := h.send(g, chain)
				served[w]++
				sum[w]++
			})
		}
		h.runUntil(begin.Add(time.Duration(b+1)*time.Second - 1))
		worst = max(worst, busiest(served, size))
	}
	return worst, busiest(sum, size*n)
}

func (h *herd) text(n int) []prefix.Hash {
	chain := make([]prefix.Hash, n)
	for i := range chain {
		chain[i] = prefix.Hash(h.rng.Uint64())
	}
	return chain
}

func TestHerdExplore(t *testing.T) {
	for _, policy := range []route.Policy{route.Sticky{}, route.LeastRequest{}} {
		for _, spread := range []time.Duration{0, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond, 400 * time.Millisecond} {
			for _, prompt := range []int{8, 64} {
				for _, shared := range []bool{false, true} {
					var line string
					for _, mode := range []string{"one", "hub+"} {
						extrapolate = mode == "hub+"
						var worst, total, mean float64
						const seeds = 20
						for seed := range uint64(seeds) {
							c := herdConfig{policy: policy, cut: mode == "cut" || mode == "one", seed: seed, gateways: 4, workers: 8, spread: spread, prompt: prompt, shared: shared}
							if mode == "one" {
								c.gateways = 1
							}
							w, a := newHerd(t, c).bursts(c, 10)
							worst, total, mean = max(worst, w), max(total, a), mean+w/seeds
						}
						line += fmt.Sprintf("  %s %.3f %.3f %.3f", mode, worst, mean, total)
					}
					t.Logf("%s %v prompt %d shared %v:%s", policy.Name(), spread, prompt, shared, line)
				}
			}
		}
	}
}
