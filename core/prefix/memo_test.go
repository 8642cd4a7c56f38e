package prefix

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// linked is a chain of n blocks that no other name has.
func linked(name string, n int) []Hash {
	return AppendChain(nil, Domain(name, ""), make([]int32, n), 1)
}

// remembers reports whether the batch that begins at block at of chain would be
// answered without reading its slots.
func (h *Hits) remembers(chain []Hash, at int) bool {
	var found hint
	return h.hints.look(chain, at, &found) && found.slots == nil
}

// A chain that comes again is soon answered without reading its slots: where all
// blocks have the same holders, where a hit ends, and where nobody holds the rest.
func TestWhatComesAgainIsRemembered(t *testing.T) {
	x := New(Options{Workers: 32})
	chain := linked("chain", 200)
	for i := range 20 {
		w, err := x.Attach(uint64(i + 1))
		if err != nil {
			t.Fatal(err)
		}
		x.Store(w, chain[:10+9*i])
	}
	var hits Hits
	for range 4 {
		x.Lookup(chain, &hits)
	}
	for at := 1; at+batch <= 10+9*19; at += batch {
		if !hits.remembers(chain, at) {
			t.Errorf("the batch at block %d is read again", at)
		}
	}
	w, _ := x.Attach(99)
	x.Store(w, chain[100:101])
	if hits.remembers(chain, 97) {
		t.Error("the batch that changed is not read again")
	}
	if !hits.remembers(chain, 81) {
		t.Error("the batch before it is")
	}
	// A block that shares its bit takes the watch away.
	x.Store(w, []Hash{chain[90] ^ 1<<40})
	if hits.remembers(chain, 81) {
		t.Error("a batch that is no longer watched is not read again")
	}
}

// Who shares a bit shares a stamp, or its going would not be seen.
func TestABitHasOneStamp(t *testing.T) {
	key := uint64(linked("key", 1)[0])
	word, bit := watchOf(key)
	for i := range 64 {
		other := key ^ 1<<i
		if w, b := watchOf(other); w == word && b == bit && other%stampCount != key%stampCount {
			t.Errorf("the bit of %x has another stamp where bit %d differs", key, i)
		}
	}
}

// TestRememberingEqualsAsking runs random histories of an index that forgets, and
// compares those who remember with those who ask for the first time.
func TestRememberingEqualsAsking(t *testing.T) {
	chains := [][]Hash{linked("a", 300), linked("b", 90), slices.Concat(linked("a", 70), linked("c", 100))}
	rapid.Check(t, func(t *rapid.T) {
		x := New(Options{Workers: 12, Budget: 1 << 19})
		var ws []Worker
		for i := range 12 {
			w, _ := x.Attach(uint64(i + 1))
			ws = append(ws, w)
		}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		var remembering Hits
		for range 30 {
			w, chain := ws[rng.IntN(len(ws))], chains[rng.IntN(len(chains))]
			from := rng.IntN(len(chain))
			to := min(from+1+rng.IntN(40), len(chain))
			switch rng.IntN(8) {
			case 0, 1, 2:
				x.Store(w, chain[:to])
			case 3:
				x.Remove(w, chain[from:to])
			case 4:
				for _, w := range ws { // widely held
					x.Store(w, chain[:to])
				}
			case 5:
				x.Clear(w)
			case 6:
				x.Sweep(1 + rng.IntN(200))
			case 7:
				other := make([]Hash, 2000)
				for i := range other {
					other[i] = Hash(rng.Uint64())
				}
				x.Store(w, other)
			}
			for range rng.IntN(5) {
				for _, chain := range chains {
					var asking Hits
					x.Lookup(chain, &remembering)
					x.Lookup(chain, &asking)
					for _, w := range ws {
						if remembering.Of(w) != asking.Of(w) {
							t.Fatalf("worker %d holds %d blocks, remembered are %d", w, asking.Of(w), remembering.Of(w))
						}
					}
				}
			}
		}
	})
}

// TestMemosSeeFinishedWrites checks that a lookup which begins after a write has
// ended sees it, however often it has seen what was before.
func TestMemosSeeFinishedWrites(t *testing.T) {
	x := New(Options{Workers: 16})
	w, _ := x.Attach(1)
	chain := linked("chain", 64)
	// In even turns blocks come, in odd ones they go; done is how many w held when the
	// last write had ended, and begun when the next began.
	var turn, done, begun atomic.Int64
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			var hits Hits
			for !stop.Load() {
				now, before := turn.Load(), done.Load()
				x.Lookup(chain, &hits)
				after := begun.Load()
				if turn.Load() != now {
					continue
				}
				if n := int64(hits.Of(w)); n < min(before, after) || n > max(before, after) {
					t.Errorf("%d blocks, of %d to %d", n, before, after)
					return
				}
			}
		})
	}
	for range 3000 {
		for n := range int64(len(chain)) {
			begun.Store(n + 1)
			x.Store(w, chain[n:n+1])
			done.Store(n + 1)
		}
		turn.Add(1)
		for n := int64(len(chain)) - 1; n >= 0; n-- {
			begun.Store(n)
			x.Remove(w, chain[n:n+1])
			done.Store(n)
		}
		turn.Add(1)
	}
	stop.Store(true)
	wg.Wait()
}
