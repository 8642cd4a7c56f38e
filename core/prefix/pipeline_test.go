package prefix

import (
	"math/rand/v2"
	"testing"
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
