package prefix

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The assembly and the Go code find the same places.
func TestSeek(t *testing.T) {
	x, chains := filled(20_000, 100, 16, 3)
	rng := rand.New(rand.NewPCG(7, 7))
	for _, chain := range chains {
		keys := chain[:1+rng.IntN(batch)]
		keys[rng.IntN(len(keys))] = Hash(rng.Uint64()) // unknown
		var tags, wantTags tagBatch
		var slots, wantSlots slotBatch
		findTags(&keys[0], len(keys), x.dir.Load(), &x.cells, &x.pages.chunks, &tags)
		plainTags(&keys[0], len(keys), x.dir.Load(), &x.cells, &x.pages.chunks, &wantTags)
		if tags != wantTags {
			t.Fatalf("%d keys: tags at %v, want %v", len(keys), tags, wantTags)
		}
		findSlots(&keys[0], len(keys), &tags, &slots)
		plainSlots(&keys[0], len(keys), &wantTags, &wantSlots)
		if slots != wantSlots {
			t.Fatalf("%d keys: slots at %v, want %v", len(keys), slots, wantSlots)
		}
	}
}

// Bisection finds what the walk finds where holders hold whole beginnings.
func TestLookupClosed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := New(Options{Budget: 64 << 20, Workers: 40})
		for i := range 40 {
			if _, err := x.Attach(uint64(i + 1)); err != nil {
				t.Fatal(err)
			}
		}
		trunk := AppendChain(nil, 1, make([]int32, 300), 1)
		branch := slices.Concat(trunk[:100], AppendChain(nil, 2, make([]int32, 100), 1))
		for range rapid.IntRange(0, 60).Draw(t, "stores") {
			chain := rapid.SampledFrom([][]Hash{trunk, branch}).Draw(t, "chain")
			n := rapid.IntRange(1, len(chain)).Draw(t, "blocks")
			x.Store(Worker(rapid.IntRange(0, 39).Draw(t, "worker")), chain[:n])
		}
		if rapid.Bool().Draw(t, "all") {
			for w := range Worker(40) {
				x.Store(w, trunk[:rapid.IntRange(1, 120).Draw(t, "beginning")])
			}
		}
		x.Detach(Worker(rapid.IntRange(0, 39).Draw(t, "gone")))
		var walked, closed Hits
		for _, chain := range [][]Hash{trunk, branch, trunk[:1], branch[:101], nil} {
			x.Lookup(chain, &walked)
			x.LookupClosed(chain, &closed)
			if !slices.Equal(walked.Blocks, closed.Blocks) {
				t.Fatalf("%d blocks: bisection finds %v, the walk %v", len(chain), closed.Blocks, walked.Blocks)
			}
		}
	})
}
