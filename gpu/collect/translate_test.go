package collect

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/prefix"
)

// tree is an engine's cache as a plain model: blocks by the engine's names, which
// say nothing of tokens.
type tree struct {
	parent map[uint64]uint64 // 0 at a root
	tokens map[uint64][]int32
	copies map[uint64]int
	names  map[uint64]prefix.Hash
	ids    []uint64
}

const treeBlock = 2

func (w *tree) grow(t *rapid.T) uint64 {
	id := uint64(len(w.ids)+1) * 0x9E3779B97F4A7C15
	parent, name := uint64(0), scope.Seed()
	if len(w.ids) > 0 && rapid.IntRange(0, 3).Draw(t, "root") > 0 {
		parent = rapid.SampledFrom(w.ids).Draw(t, "parent")
		name = w.names[parent]
	}
	// The number makes every block's tokens its own.
	tokens := []int32{rapid.Int32Range(0, 9).Draw(t, "token"), int32(len(w.ids))}
	w.parent[id], w.tokens[id] = parent, tokens
	w.names[id] = prefix.AppendChain(nil, name, tokens, treeBlock)[0]
	w.ids = append(w.ids, id)
	return id
}

func (w *tree) stored(id uint64) Event {
	return Event{
		Kind: Stored, Blocks: []uint64{id}, Parent: w.parent[id], Root: w.parent[id] == 0,
		Tokens: w.tokens[id], BlockTokens: treeBlock,
	}
}

// TestTranslatorFollowsTheEngine: in whatever order stores come, a block whose
// ancestors have all come is in the mirror while the engine holds it, and a block
// that is in the mirror is held.
func TestTranslatorFollowsTheEngine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &tree{parent: map[uint64]uint64{}, tokens: map[uint64][]int32{}, copies: map[uint64]int{}, names: map[uint64]prefix.Hash{}}
		m := NewMirror(0)
		tr := NewTranslator(m, scope)
		t.Repeat(map[string]func(*rapid.T){
			"store new": func(t *rapid.T) {
				var events []Event
				for range rapid.IntRange(1, 8).Draw(t, "n") {
					id := w.grow(t)
					w.copies[id]++
					events = append(events, w.stored(id))
				}
				tr.Apply(rapid.Permutation(events).Draw(t, "order")...)
			},
			"store again": func(t *rapid.T) {
				if len(w.ids) > 0 {
					id := rapid.SampledFrom(w.ids).Draw(t, "id")
					w.copies[id]++
					tr.Apply(w.stored(id))
				}
			},
			"remove": func(t *rapid.T) {
				if len(w.ids) > 0 {
					id := rapid.SampledFrom(w.ids).Draw(t, "id")
					w.copies[id] = max(w.copies[id]-1, 0)
					tr.Apply(Event{Kind: Removed, Blocks: []uint64{id}})
				}
			},
			"clear": func(t *rapid.T) {
				if rapid.IntRange(0, 4).Draw(t, "rarely") == 0 {
					clear(w.copies)
					tr.Apply(Event{Kind: Cleared})
				}
			},
			"": func(t *rapid.T) { w.check(t, m, tr) },
		})
	})
}

func (w *tree) check(t *rapid.T, m *Mirror, tr *Translator) {
	got := m.list()
	var held []prefix.Hash
	for id, n := range w.copies {
		if n == 0 {
			continue
		}
		held = append(held, w.names[id])
		whole := true
		for p := w.parent[id]; p != 0; p = w.parent[p] {
			whole = whole && w.copies[p] > 0
		}
		if _, in := slices.BinarySearch(got, w.names[id]); whole && !in {
			t.Fatalf("block %x and all before it are held, and it is not in the mirror", id)
		}
	}
	slices.Sort(held)
	for _, h := range got {
		if _, in := slices.BinarySearch(held, h); !in {
			t.Fatalf("%x is in the mirror and not held", h)
		}
	}
	queued := 0
	for _, children := range tr.orphans {
		queued += len(children)
	}
	if queued != tr.waiting {
		t.Fatalf("%d blocks wait, %d are counted", queued, tr.waiting)
	}
	var sums prefix.Sums
	for _, h := range got {
		sums.Add(h)
	}
	if sums != m.sums {
		t.Fatal("the sums are not those of the blocks")
	}
}

func TestNamesDependOnScope(t *testing.T) {
	tokens := []int32{1, 2}
	name := func(adapter, salt string) prefix.Hash {
		return prefix.AppendChain(nil, prefix.Scope{Base: "m", Compat: "c", Adapter: adapter, Salt: salt}.Seed(), tokens, 2)[0]
	}
	for _, tt := range []struct {
		what  string
		event Event
		want  []prefix.Hash
	}{
		{"plain", Event{}, []prefix.Hash{name("", "")}},
		{"salted", Event{Salt: "s"}, []prefix.Hash{name("", "s")}},
		{"adapter", Event{Adapter: "a"}, []prefix.Hash{name("a", "")}},
		{"opaque", Event{Opaque: true}, nil},
	} {
		m := NewMirror(0)
		e := tt.event
		e.Kind, e.Root, e.Blocks, e.Tokens, e.BlockTokens = Stored, true, []uint64{7}, tokens, 2
		NewTranslator(m, scope).Apply(e)
		if got := m.list(); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %x, want %x", tt.what, got, tt.want)
		}
	}
}

// What comes after a block without a name has none, and does not wait for ever.
func TestOpaqueBlocksHideWhatFollows(t *testing.T) {
	m := NewMirror(0)
	tr := NewTranslator(m, scope)
	child := Event{Kind: Stored, Blocks: []uint64{2}, Parent: 1, Tokens: []int32{1}, BlockTokens: 1}
	tr.Apply(child, Event{Kind: Stored, Blocks: []uint64{1}, Root: true, Opaque: true})
	child.Blocks, child.Parent = []uint64{3}, 2
	tr.Apply(child)
	if s := m.Stats(); s.Held != 0 || tr.waiting != 0 || len(tr.orphans) != 0 {
		t.Errorf("held %d, waiting %d, parents %d", s.Held, tr.waiting, len(tr.orphans))
	}
}

// Neither a flood of orphans nor of blocks grows without bound.
func TestTranslatorIsBounded(t *testing.T) {
	m := NewMirror(100)
	tr := NewTranslator(m, scope)
	for id := uint64(1); id < 1000; id++ {
		tr.Apply(root(id, int32(id)))
	}
	if s := m.Stats(); s.Held != 100 || len(tr.known) > 100 {
		t.Errorf("%+v, known %d, want 100", s, len(tr.known))
	}
	m = NewMirror(0)
	tr = NewTranslator(m, scope)
	for id := uint64(1); id < 2*maxWaiting; id++ {
		tr.Apply(Event{Kind: Stored, Blocks: []uint64{2 * id}, Parent: 2*id + 1, Tokens: []int32{1}, BlockTokens: 1})
	}
	if tr.waiting != maxWaiting || len(tr.known) != maxWaiting {
		t.Errorf("%d wait, %d known, want %d", tr.waiting, len(tr.known), maxWaiting)
	}
}
