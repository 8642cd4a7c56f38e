package hub

import (
	"slices"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/unit"
)

// One hot prefix and 64 calls through four gateways: it is copied as it is with
// one, although each gateway sees but a quarter of those that share it.
func TestHotPrefixSpreads(t *testing.T) {
	for _, gateways := range []int{1, 4} {
		for _, spread := range []time.Duration{time.Millisecond, 20 * time.Millisecond, 200 * time.Millisecond} {
			for seed := range uint64(4) {
				for _, blocks := range []int{16, 128} {
					if got := hot(t, herdConfig{policy: route.Sticky{}, seed: seed, gateways: gateways, workers: 8, spread: spread, prompt: blocks}); got > 1.6 {
						t.Errorf("%d gateways, seed %d, %d blocks within %v: busiest %.2f of the mean", gateways, seed, blocks, spread, got)
					}
				}
			}
		}
	}
}

// hot is the busiest worker's share over the mean, of 64 calls that share their
// first blocks, which one worker holds.
func hot(t *testing.T, c herdConfig) float64 {
	h := newHerd(t, c)
	tracker := prefix.NewTracker(prefix.TrackerOptions{})
	tracker.Follow(h.view)
	end := h.now.Add(500 * time.Millisecond)
	for _, g := range h.gateways {
		h.exchange(g, end)
	}
	shared := h.text(c.prompt)
	tracker.Finished(tracker.Dispatched("w00", 1, shared), shared, prefix.Served{Prompt: unit.Tokens(16 * c.prompt), Known: true})
	served := make([]int, c.workers)
	for i := range 64 {
		h.at(h.now.Add(50*time.Millisecond+time.Duration(h.rng.Int64N(int64(c.spread)))), func() {
			g, chain := h.gateways[i%c.gateways], slices.Concat(shared, h.text(4))
			q := route.Query{Model: "m", Prompt: unit.Tokens(16 * len(chain)), Chain: chain, BlockTokens: 16, Now: h.now}
			d, err := g.router.Decide(&q, g.table.Columns(h.view), nil, route.Caches{Guess: tracker.Table()})
			if err != nil {
				t.Fatal(err)
			}
			left := q.Prompt - d.ServeHit
			r := d.Slots[d.Serve].Reserve(load.Prefill, load.Work{Prompt: left, Context: left})
			g.router.Commit(&q, &d)
			ticket := tracker.Dispatched(d.Server().ID, d.Server().Epoch, chain)
			h.at(h.now.Add(time.Duration(left)*50*time.Microsecond), func() {
				r.FirstToken()
				tracker.Finished(ticket, chain, prefix.Served{Prompt: q.Prompt, Cached: d.ServeHit, Known: true})
			})
			served[d.Serve]++
		})
	}
	h.runUntil(end)
	return float64(slices.Max(served)*c.workers) / 64
}
