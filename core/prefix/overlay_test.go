package prefix

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/unit"
)

func TestOverlay(t *testing.T) {
	now := time.Unix(1000, 0)
	o := NewOverlay(time.Second, 8<<20)
	x := New(Options{})
	a, _ := x.Attach(1)
	b, _ := x.Attach(2)
	chain := AppendChain(nil, Domain("m", ""), []int32{1, 2, 3, 4, 5, 6}, 1)
	x.Store(a, chain[:2])
	o.Add(b, chain[:5], now)
	look := func(now time.Time) (int, int) {
		var hits Hits
		x.Lookup(chain, &hits)
		o.Raise(chain, &hits, now)
		return hits.Of(a), hits.Of(b)
	}
	if ha, hb := look(now); ha != 2 || hb != 5 {
		t.Errorf("hits %d, %d, want 2, 5", ha, hb)
	}
	o.Add(a, chain[:1], now.Add(1500*time.Millisecond)) // turns the generation
	if _, hb := look(now.Add(1600 * time.Millisecond)); hb != 5 {
		t.Errorf("an entry died before two TTLs: %d", hb)
	}
	if _, hb := look(now.Add(2100 * time.Millisecond)); hb != 0 {
		t.Errorf("an entry outlived two TTLs: %d", hb)
	}
	o.Add(b, chain, now.Add(2200*time.Millisecond))
	o.Forget(b)
	if _, hb := look(now.Add(2300 * time.Millisecond)); hb != 0 {
		t.Errorf("a forgotten worker hits %d", hb)
	}
}

// An overlay finds what comparing with every entry finds.
func TestOverlayEqualsModel(t *testing.T) {
	type entry struct {
		w     Worker
		chain []Hash
	}
	rapid.Check(t, func(t *rapid.T) {
		const workers = 12
		o := NewOverlay(time.Hour, 64<<20)
		now := time.Unix(1000, 0)
		var young, old []entry
		// Few tokens, so that chains branch everywhere; some are longer than a chunk's rest.
		tokens := rapid.Custom(func(t *rapid.T) []int32 {
			out := slices.Repeat([]int32{7}, rapid.SampledFrom([]int{0, 0, 5, 300, 9000}).Draw(t, "trunk"))
			return append(out, rapid.SliceOfN(rapid.Int32Range(0, 1), 0, 12).Draw(t, "branch")...)
		})
		chain := func(t *rapid.T) []Hash { return AppendChain(nil, 1, tokens.Draw(t, "tokens"), 1) }
		var hits Hits
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				e := entry{Worker(rapid.IntRange(0, workers-1).Draw(t, "worker")), chain(t)}
				o.Add(e.w, e.chain, now)
				young = append(young, e)
			},
			"forget": func(t *rapid.T) {
				w := Worker(rapid.IntRange(0, workers-1).Draw(t, "worker"))
				o.Forget(w)
				gone := func(e entry) bool { return e.w == w }
				young, old = slices.DeleteFunc(young, gone), slices.DeleteFunc(old, gone)
			},
			"turn": func(*rapid.T) {
				if len(young) > 0 { // else nothing was entered that could turn old
					now = now.Add(time.Hour)
					o.turn(now, nil)
					young, old = nil, young
				}
			},
			"": func(t *rapid.T) {
				asked := chain(t)
				hits.reset(workers)
				o.Raise(asked, &hits, now)
				want := make([]int32, workers)
				for _, e := range slices.Concat(young, old) {
					n := 0
					for n < min(len(asked), len(e.chain)) && asked[n] == e.chain[n] {
						n++
					}
					want[e.w] = max(want[e.w], int32(n))
				}
				if !slices.Equal(hits.Blocks, want) {
					t.Fatalf("%d blocks: %v, want %v", len(asked), hits.Blocks, want)
				}
			},
		})
	})
}

// A full overlay forgets the older half before its time, and keeps to its budget.
func TestOverlayKeepsToItsBudget(t *testing.T) {
	const budget unit.Bytes = 1 << 20
	o := NewOverlay(time.Hour, budget)
	now := time.Unix(1000, 0)
	var hits Hits
	for i := range 3000 {
		chain := AppendChain(nil, Hash(i), make([]int32, 1+i%700), 1)
		o.Add(Worker(i%5), chain, now)
		bytes := o.young.bytes
		if o.old != nil {
			bytes += o.old.bytes
		}
		if bytes > int(budget) {
			t.Fatalf("%d bytes of %d", bytes, budget)
		}
		hits.reset(5)
		if o.Raise(chain, &hits, now); hits.Of(Worker(i%5)) != len(chain) {
			t.Fatalf("the newest chain is not known: %d of %d blocks", hits.Of(Worker(i%5)), len(chain))
		}
	}
	if o.old == nil {
		t.Error("it never was full")
	}
	long := AppendChain(nil, 1, make([]int32, 1<<20), 1)
	if o.Add(1, long, now); o.young.bytes > int(budget)/2 {
		t.Errorf("a long chain takes %d bytes", o.young.bytes)
	}
}
