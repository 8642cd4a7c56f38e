package prefix

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/unit"
)

// pairs is the plain model: which incarnation holds which block.
type pairs map[Worker]map[Hash]bool

func (p pairs) hit(w Worker, chain []Hash) int {
	for i, h := range chain {
		if !p[w][h] {
			return i
		}
	}
	return len(chain)
}

func checkAgainst(t interface{ Fatalf(string, ...any) }, x *Index, model pairs, chain []Hash, hits *Hits) {
	x.Lookup(chain, hits)
	listed := map[Worker]bool{}
	for _, w := range hits.Workers {
		if listed[w] {
			t.Fatalf("worker %d listed twice", w)
		}
		listed[w] = true
	}
	for w := range model {
		want := model.hit(w, chain)
		if got := hits.Of(w); got != want {
			t.Fatalf("worker %d holds %d leading blocks of %v, want %d", w, got, chain, want)
		}
		if listed[w] != (want > 0) {
			t.Fatalf("worker %d listed: %v, blocks %d", w, listed[w], want)
		}
	}
	for w := range listed {
		if _, ok := model[w]; !ok {
			t.Fatalf("detached worker %d listed", w)
		}
	}
}

// TestIndexEqualsModel runs random histories, with few hashes so that blocks are
// shared, reused, widely held and deleted, against a map of maps.
func TestIndexEqualsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := New(Options{Workers: 24})
		model := pairs{}
		var hits Hits
		universe := rapid.IntRange(4, 400).Draw(t, "universe")
		hash := rapid.Custom(func(t *rapid.T) Hash {
			n := uint64(rapid.IntRange(0, universe).Draw(t, "h"))
			if n%2 == 0 { // half of them crowd one page
				return Hash(n)
			}
			return Hash(n * 0x9E3779B97F4A7C15)
		})
		chains := rapid.SliceOfN(hash, 0, 80)
		// Chains that are looked up again and again are remembered; since the hashes of
		// these are no chains, what is remembered is often of another one.
		usual := rapid.SliceOfN(rapid.SliceOfN(hash, 2, 80), 1, 3).Draw(t, "usual")
		worker := func(t *rapid.T) (Worker, bool) {
			var ws []Worker
			for w := range Worker(24) {
				if _, ok := model[w]; ok {
					ws = append(ws, w)
				}
			}
			if len(ws) == 0 {
				return 0, false
			}
			return rapid.SampledFrom(ws).Draw(t, "worker"), true
		}
		identity := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"attach": func(t *rapid.T) {
				identity++
				w, err := x.Attach(identity)
				if err != nil {
					if len(model) < 24 {
						t.Fatalf("attach: %v with %d attached", err, len(model))
					}
					return
				}
				model[w] = map[Hash]bool{}
			},
			"store": func(t *rapid.T) {
				if w, ok := worker(t); ok {
					c := chains.Draw(t, "blocks")
					if rapid.Bool().Draw(t, "usual") {
						c = rapid.SampledFrom(usual).Draw(t, "chain")
					}
					x.Store(w, c)
					for _, h := range c {
						model[w][h] = true
					}
				}
			},
			"store everywhere": func(t *rapid.T) {
				c := chains.Draw(t, "blocks")
				for w := range model {
					x.Store(w, c)
					for _, h := range c {
						model[w][h] = true
					}
				}
			},
			"remove": func(t *rapid.T) {
				if w, ok := worker(t); ok {
					c := chains.Draw(t, "blocks")
					x.Remove(w, c)
					for _, h := range c {
						delete(model[w], h)
					}
				}
			},
			"clear": func(t *rapid.T) {
				if w, ok := worker(t); ok {
					x.Clear(w)
					model[w] = map[Hash]bool{}
				}
			},
			"detach": func(t *rapid.T) {
				if w, ok := worker(t); ok {
					x.Detach(w)
					delete(model, w)
				}
			},
			"sweep": func(t *rapid.T) { x.Sweep(rapid.IntRange(1, 100).Draw(t, "pages")) },
			"": func(t *rapid.T) {
				checkAgainst(t, x, model, chains.Draw(t, "chain"), &hits)
				for _, chain := range usual {
					checkAgainst(t, x, model, chain, &hits)
				}
				var held int
				blocks := map[Hash]bool{}
				for _, m := range model {
					held += len(m)
					for h := range m {
						blocks[h] = true
					}
				}
				s := x.Stats()
				if !x.sweeping.busy() && (s.Held != int64(held) || int(s.Blocks) != len(blocks)) {
					t.Fatalf("stats %+v, want %d pairs of %d blocks", s, held, len(blocks))
				}
			},
		})
	})
}

// TestGrowthKeepsEverything stores far more than one page a shard.
func TestGrowthKeepsEverything(t *testing.T) {
	x := New(Options{})
	w, _ := x.Attach(1)
	rng := rand.New(rand.NewPCG(1, 2))
	all := make([]Hash, fewer(200_000, 100_000))
	for i := range all {
		all[i] = Hash(rng.Uint64())
	}
	x.Store(w, all)
	var hits Hits
	x.Lookup(all, &hits)
	if got := hits.Of(w); got != len(all) {
		t.Fatalf("holds %d of %d", got, len(all))
	}
	per := float64(x.Stats().Bytes) / float64(len(all))
	if per > 48 {
		t.Errorf("%.1f bytes a block", per)
	}
	x.Remove(w, all)
	if s := x.Stats(); s.Blocks != 0 || s.Held != 0 || x.Digest() != 0 {
		t.Errorf("after removing all: %+v, digest %x", s, x.Digest())
	}
}

// TestFillIsSteady proves that the cost of a block does not swing with the
// number of blocks.
func TestFillIsSteady(t *testing.T) {
	x := New(Options{Budget: 1 << 30})
	w, _ := x.Attach(1)
	rng := rand.New(rand.NewPCG(3, 4))
	batch := make([]Hash, 10_000)
	for n := len(batch); n <= fewer(600_000, 240_000); n += len(batch) {
		for i := range batch {
			batch[i] = Hash(rng.Uint64())
		}
		x.Store(w, batch)
		if per := float64(x.Stats().Bytes) / float64(n); n >= 200_000 && per > 48 {
			t.Fatalf("%.1f bytes a block at %d blocks", per, n)
		}
	}
}

func TestBudgetHolds(t *testing.T) {
	budget := unit.Bytes(fewer(6, 3) << 20)
	x := New(Options{Budget: budget})
	w, _ := x.Attach(1)
	var recent []Hash
	for i := range fewer(30, 12) {
		chain := make([]Hash, 10_000)
		for j := range chain {
			chain[j] = Domain("m", string(rune(i)))*31 + Hash(j)*0x9E3779B97F4A7C15
		}
		x.Store(w, chain)
		recent = chain
		if b := x.Stats().Bytes; b > budget {
			t.Fatalf("%d bytes over the budget", b-budget)
		}
	}
	s := x.Stats()
	if s.Forgotten == 0 || s.Held != int64(s.Blocks) {
		t.Errorf("%+v", s)
	}
	if per := float64(s.Bytes) / float64(s.Blocks); per > 48 {
		t.Errorf("%.1f bytes a block at the budget", per)
	}
	found := 0
	for _, h := range recent {
		if _, _, _, ok := x.find(uint64(h)); ok {
			found++
		}
	}
	if found < 9_900 {
		t.Errorf("only %d of the last 10000 blocks are left", found)
	}
}

func TestSameWritesSameDigest(t *testing.T) {
	build := func(lookups bool) *Index {
		size := uint64(fewer(2, 1))
		x := New(Options{Budget: unit.Bytes(size * 3 << 19), Workers: 16})
		rng := rand.New(rand.NewPCG(5, 6))
		var hits Hits
		for i := range 16 {
			_, _ = x.Attach(uint64(100 + i))
		}
		for range fewer(2000, 900) {
			w := Worker(rng.IntN(16))
			chain := make([]Hash, rng.IntN(200))
			for j := range chain {
				chain[j] = Hash(rng.Uint64N(size << 16))
			}
			switch rng.IntN(20) {
			case 0:
				x.Clear(w)
			case 1, 2, 3:
				x.Remove(w, chain)
			default:
				x.Store(w, chain)
			}
			x.Sweep(2)
			if lookups {
				x.Lookup(chain, &hits)
			}
		}
		return x
	}
	a, b := build(false), build(true)
	if a.Digest() != b.Digest() || a.Stats() != b.Stats() {
		t.Errorf("digests %x %x, stats %+v %+v", a.Digest(), b.Digest(), a.Stats(), b.Stats())
	}
}

// TestReadersBesideAWriter checks that what is never removed is always found,
// and what was never stored never is, while pages split, move and are recycled.
func TestReadersBesideAWriter(t *testing.T) {
	x := New(Options{Budget: 64 << 20})
	keep, _ := x.Attach(1)
	churn, _ := x.Attach(2)
	chain := make([]Hash, 2000)
	for i := range chain {
		chain[i] = AppendChain(nil, Domain("keep", ""), []int32{int32(i)}, 1)[0]
	}
	x.Store(keep, chain)
	absent := []Hash{Domain("absent", "")}
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			var hits Hits
			for !stop.Load() {
				if x.Lookup(chain, &hits); hits.Of(keep) != len(chain) {
					t.Errorf("lost blocks: %d of %d", hits.Of(keep), len(chain))
					return
				}
				if x.Lookup(absent, &hits); len(hits.Workers) != 0 {
					t.Error("found what was never stored")
					return
				}
			}
		})
	}
	rng := rand.New(rand.NewPCG(7, 8))
	for range 25 {
		batch := make([]Hash, 2000)
		for i := range batch {
			batch[i] = Hash(rng.Uint64())
		}
		x.Store(churn, batch)
		x.Store(keep, chain[:100])
		x.Remove(churn, batch[:rng.IntN(len(batch)+1)])
		if rng.IntN(10) == 0 {
			x.Clear(churn)
		}
		x.Sweep(50)
	}
	stop.Store(true)
	wg.Wait()
}

func TestAppendChain(t *testing.T) {
	tokens := make([]int32, 1300)
	for i := range tokens {
		tokens[i] = int32(i * 7)
	}
	root := Domain("m", "")
	for _, block := range []unit.Tokens{1, 16, 64, 600} {
		whole := AppendChain(nil, root, tokens, block)
		if want := len(tokens) / int(block); len(whole) != want {
			t.Fatalf("block %d: %d hashes, want %d", block, len(whole), want)
		}
		mid := len(whole) / 2
		rest := AppendChain(nil, whole[mid], tokens[(mid+1)*int(block):], block)
		for i, h := range rest {
			if h != whole[mid+1+i] {
				t.Fatalf("block %d: chain does not go on from its middle", block)
			}
		}
		changed := append([]int32(nil), tokens...)
		changed[0]++
		for i, h := range AppendChain(nil, root, changed, block) {
			if h == whole[i] {
				t.Fatalf("block %d: hash %d does not depend on the first token", block, i)
			}
		}
	}
	if Domain("m", "") == Domain("m", "t") || Domain("a", "b") == Domain("ab", "") {
		t.Error("domains or salts meet")
	}
}
