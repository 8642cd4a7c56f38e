package prefix

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/unit"
)

// TestCacheEqualsAPlainLRU compares the model with a slice that is searched.
func TestCacheEqualsAPlainLRU(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := New(Options{Workers: 2})
		w, _ := x.Attach(1)
		capacity := rapid.IntRange(1, 12).Draw(t, "capacity")
		c := NewCache(x, w, unit.Blocks(capacity))
		var lru []Hash // most recent first
		var hits Hits
		t.Repeat(map[string]func(*rapid.T){
			"touch": func(t *rapid.T) {
				n := rapid.IntRange(0, 8).Draw(t, "n")
				kind := rapid.IntRange(0, 5).Draw(t, "kind")
				chain := make([]Hash, n)
				for i := range chain {
					chain[i] = Hash(100*kind + i + 1)
				}
				c.Touch(chain)
				next := append([]Hash(nil), chain[:min(n, capacity)]...)
				for _, h := range lru {
					found := false
					for _, g := range next {
						found = found || g == h
					}
					if !found {
						next = append(next, h)
					}
				}
				lru = next[:min(len(next), capacity)]
			},
			"clear": func(*rapid.T) { c.Clear(); lru = nil },
			"": func(t *rapid.T) {
				if int(c.Len()) != len(lru) {
					t.Fatalf("remembers %d blocks, want %d", c.Len(), len(lru))
				}
				for _, h := range lru {
					if x.Lookup([]Hash{h}, &hits); hits.Of(w) != 1 {
						t.Fatalf("block %d is missing from the index", h)
					}
				}
				if s := x.Stats(); !x.sweeping.busy() && int(s.Held) != len(lru) {
					t.Fatalf("index holds %d, want %d", s.Held, len(lru))
				}
			},
		})
	})
}

func TestCacheDoesNotOverRemember(t *testing.T) {
	x := New(Options{})
	w, _ := x.Attach(1)
	c := NewCache(x, w, 1000) // but the engine really holds 300
	engine := NewCache(New(Options{}), 0, 300)
	engineWorker, _ := engine.index.Attach(1)
	engine.worker = engineWorker
	var hits, truth Hits
	chain := func(i int) []Hash {
		return AppendChain(nil, Domain("m", ""), []int32{int32(i % 50), 1, 2, 3, 4, 5, 6, 7, 8, 9}, 1)
	}
	for i := range 5000 {
		ch := chain(i)
		x.Lookup(ch, &hits)
		engine.index.Lookup(ch, &truth)
		c.Touch(ch)
		engine.Touch(ch)
		c.Report(ch, unit.Blocks(hits.Of(w)), unit.Blocks(truth.Of(engineWorker)), 10)
	}
	if got := c.Capacity(); got > 500 {
		t.Errorf("still believes in %d blocks where there are 300", got)
	}
	for range 20_000 { // the engine gets its memory back
		c.Report(chain(0), 10, 10, 10)
	}
	if c.Capacity() != 1000 {
		t.Errorf("capacity %d did not come back", c.Capacity())
	}
}
