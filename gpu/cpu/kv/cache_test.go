package kv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newCache(t testing.TB, blocks, blockTokens int) *Cache {
	t.Helper()
	c, err := NewCache(blocks, blockTokens, 1)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// owner is a sequence of the plain model.
type owner struct {
	salt   string
	tokens []int32
	blocks []BlockID
	done   int
}

// world is the plain model: who holds what, what was written where, and what the
// events say can be found.
type world struct {
	c      *Cache
	owners []*owner
	wrote  map[BlockID]string // what a block's KV was computed for
	gens   []uint32
	sub    *Subscription
	found  map[Hash]bool
}

const testBlock = 2

func content(salt string, tokens []int32) string { return fmt.Sprint(salt, tokens) }

func (w *world) held() map[BlockID]int {
	held := map[BlockID]int{}
	for _, o := range w.owners {
		for _, b := range o.blocks {
			held[b]++
		}
	}
	return held
}

// fresh checks blocks that were just handed out to be written.
func (w *world) fresh(t *rapid.T, held map[BlockID]int, blocks []BlockID) {
	for _, b := range blocks {
		if held[b] > 0 {
			t.Fatalf("block %d was handed out while held", b)
		}
		if g := w.c.Generation(b); g != w.gens[b]+1 {
			t.Fatalf("block %d has generation %d after %d", b, g, w.gens[b])
		}
		w.gens[b]++
		delete(w.wrote, b)
	}
}

func (w *world) acquire(t *rapid.T) {
	o := &owner{
		salt:   rapid.SampledFrom([]string{"", "a"}).Draw(t, "salt"),
		tokens: rapid.SliceOfN(rapid.Int32Range(0, 1), 1, 14).Draw(t, "tokens"),
	}
	headroom := rapid.IntRange(0, 2).Draw(t, "headroom")
	before, held := w.c.Counts(), w.held()
	hits := w.c.Lookup(o.salt, o.tokens)
	blocks, cached, ok := w.c.Acquire(o.salt, o.tokens, headroom)
	need := (len(o.tokens)+testBlock-1)/testBlock - hits/testBlock
	if !ok {
		// Hit blocks that nobody holds need room too, at most hits/testBlock.
		if need+hits/testBlock+headroom <= before.Free {
			t.Fatalf("refused %d blocks with %+v", need, before)
		}
		if after := w.c.Counts(); after != before {
			t.Fatalf("a refusal changed %+v to %+v", before, after)
		}
		return
	}
	if cached != hits || cached%testBlock != 0 || cached >= len(o.tokens) {
		t.Fatalf("cached %d of %d, Lookup said %d", cached, len(o.tokens), hits)
	}
	for i := range cached / testBlock {
		if want := content(o.salt, o.tokens[:(i+1)*testBlock]); w.wrote[blocks[i]] != want {
			t.Fatalf("hit %d is block %d of %q, want %q", i, blocks[i], w.wrote[blocks[i]], want)
		}
	}
	w.fresh(t, held, blocks[cached/testBlock:])
	o.blocks, o.done = blocks, cached/testBlock
	w.owners = append(w.owners, o)
	if free := w.c.Counts().Free; free < headroom {
		t.Fatalf("%d free of headroom %d", free, headroom)
	}
}

func (w *world) owner(t *rapid.T) (*owner, int) {
	if len(w.owners) == 0 {
		t.Skip("nobody")
	}
	i := rapid.IntRange(0, len(w.owners)-1).Draw(t, "owner")
	return w.owners[i], i
}

func (w *world) extend(t *rapid.T) {
	o, _ := w.owner(t)
	n, before, held := rapid.IntRange(1, 3).Draw(t, "n"), w.c.Counts(), w.held()
	blocks, ok := w.c.Extend(slices.Clip(o.blocks), n)
	if ok != (n <= before.Free) {
		t.Fatalf("Extend(%d) = %v with %+v", n, ok, before)
	}
	w.fresh(t, held, blocks[len(o.blocks):])
	o.blocks = blocks
}

func (w *world) commit(t *rapid.T) {
	o, _ := w.owner(t)
	// Generated tokens fill the blocks as far as they reach.
	for len(o.tokens) < len(o.blocks)*testBlock && rapid.Bool().Draw(t, "more") {
		o.tokens = append(o.tokens, rapid.Int32Range(0, 1).Draw(t, "token"))
	}
	for i := o.done; (i+1)*testBlock <= len(o.tokens); i++ {
		w.wrote[o.blocks[i]] = content(o.salt, o.tokens[:(i+1)*testBlock])
	}
	o.done = w.c.Commit(o.salt, o.blocks, o.tokens, o.done)
	if want := len(o.tokens) / testBlock; o.done != want {
		t.Fatalf("Commit = %d, want %d", o.done, want)
	}
}

func (w *world) release(t *rapid.T) {
	o, i := w.owner(t)
	w.c.Release(o.blocks)
	w.owners = slices.Delete(w.owners, i, i+1)
}

func (w *world) readEvents(t *rapid.T) {
	for {
		events, gap := w.sub.poll(nil)
		if gap {
			t.Fatal("gap")
		}
		if len(events) == 0 {
			return
		}
		for _, e := range events {
			w.apply(t, e)
		}
	}
}

func (w *world) apply(t *rapid.T, e Event) {
	switch e.Kind {
	case Stored:
		if got := Chain(nil, e.Parent, e.Tokens, e.BlockTokens); !slices.Equal(got, e.Hashes) {
			t.Fatalf("event %+v: its tokens hash to %v", e, got)
		}
		for _, h := range e.Hashes {
			if w.found[h] {
				t.Fatalf("stored twice: %v", h)
			}
			w.found[h] = true
		}
	case Removed:
		if !w.found[e.Hashes[0]] {
			t.Fatalf("removed but not stored: %v", e.Hashes)
		}
		delete(w.found, e.Hashes[0])
	case Cleared:
		clear(w.found)
	}
}

func (w *world) check(t *rapid.T) {
	counts, held := w.c.Counts(), w.held()
	if counts.Held != len(held) || counts.Free != counts.Total-counts.Held || counts.Cached > counts.Free {
		t.Fatalf("%+v with %d held", counts, len(held))
	}
	for b, g := range w.gens {
		if got := w.c.Generation(BlockID(b)); got != g {
			t.Fatalf("block %d changed generation to %d unasked", b, got)
		}
	}
}

// checkEvents compares what the events say with what can be found.
func (w *world) checkEvents(t *rapid.T) {
	w.readEvents(t)
	_, dump := w.c.Dump()
	dumped := map[Hash]bool{}
	for _, e := range dump {
		if !dumped[e.Parent] && e.Parent != w.c.Root("") && e.Parent != w.c.Root("a") {
			t.Fatalf("%v is dumped before its parent or without it", e)
		}
		dumped[e.Hashes[0]] = true
	}
	if diff := cmp.Diff(w.found, dumped); diff != "" {
		t.Fatalf("events and dump differ:\n%s", diff)
	}
	tokens := rapid.SliceOfN(rapid.Int32Range(0, 1), 1, 14).Draw(t, "probe")
	want := 0
	for _, h := range Chain(nil, w.c.Root(""), tokens[:len(tokens)-1], testBlock) {
		if !w.found[h] {
			break
		}
		want += testBlock
	}
	if got := w.c.Lookup("", tokens); got != want {
		t.Fatalf("Lookup(%v) = %d, the events say %d", tokens, got, want)
	}
}

func testCacheAgainstModel(t *testing.T, collide bool) {
	rapid.Check(t, func(t *rapid.T) {
		c, err := NewCache(rapid.IntRange(1, 12).Draw(t, "blocks"), testBlock, 1)
		if err != nil {
			t.Fatal(err)
		}
		if collide {
			c.hash = func(Hash, []int32) Hash { return 7 }
		}
		w := &world{
			c: c, wrote: map[BlockID]string{}, gens: make([]uint32, c.Counts().Total),
			sub: c.Subscribe(0), found: map[Hash]bool{},
		}
		actions := map[string]func(*rapid.T){
			"acquire": w.acquire, "acquire2": w.acquire, "extend": w.extend, "commit": w.commit, "commit2": w.commit,
			"release": w.release, "clear": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "rarely") == 0 {
					c.Clear()
				}
			},
			"": w.check,
		}
		if !collide {
			actions["events"] = w.checkEvents
		}
		t.Repeat(actions)
		for _, o := range w.owners {
			c.Release(o.blocks)
		}
		if n := c.Counts(); n.Free != n.Total || n.Held != 0 {
			t.Fatalf("after all: %+v", n)
		}
	})
}

func TestCacheAgainstModel(t *testing.T) { testCacheAgainstModel(t, false) }

// With one hash for everything, only the comparison of tokens and parents is
// left.
func TestCacheAgainstModelWhenAllHashesCollide(t *testing.T) { testCacheAgainstModel(t, true) }

// put computes tokens in c and gives the blocks back.
func put(t testing.TB, c *Cache, tokens ...int32) {
	t.Helper()
	blocks, cached, ok := c.Acquire("", tokens, 0)
	if !ok {
		t.Fatalf("no room for %v in %+v", tokens, c.Counts())
	}
	c.Commit("", blocks, tokens, cached/c.BlockTokens())
	c.Release(blocks)
}

func TestEvictsTheLeastRecentEndFirst(t *testing.T) {
	c := newCache(t, 4, 2)
	put(t, c, 1, 1, 2, 2)
	put(t, c, 3, 3, 4, 4)
	if got := c.Lookup("", []int32{1, 1, 2, 2, 0}); got != 4 {
		t.Fatalf("Lookup = %d, want 4", got)
	}
	put(t, c, 5, 5) // takes (1,1)'s successor
	for _, tt := range []struct {
		tokens []int32
		want   int
	}{
		{[]int32{1, 1, 2, 2, 0}, 2}, {[]int32{3, 3, 4, 4, 0}, 4}, {[]int32{5, 5, 0}, 2}, {[]int32{5, 5}, 0},
	} {
		if got := c.Lookup("", tt.tokens); got != tt.want {
			t.Errorf("Lookup(%v) = %d, want %d", tt.tokens, got, tt.want)
		}
	}
}

func TestSaltsDoNotShare(t *testing.T) {
	c := newCache(t, 8, 2)
	put(t, c, 1, 1, 2, 2)
	if got := c.Lookup("tenant", []int32{1, 1, 2, 2, 3}); got != 0 {
		t.Errorf("a salted sequence found %d tokens of an unsalted one", got)
	}
}

func TestTwoCopiesAreRemovedOnce(t *testing.T) {
	c := newCache(t, 4, 2)
	sub := c.Subscribe(0)
	tokens := []int32{1, 1}
	a, _, _ := c.Acquire("", tokens, 0)
	b, _, _ := c.Acquire("", tokens, 0)
	c.Commit("", a, tokens, 0)
	c.Commit("", b, tokens, 0)
	c.Release(a)
	if got := c.Lookup("", []int32{1, 1, 9}); got != 2 {
		t.Errorf("the block is lost with its first copy: Lookup = %d", got)
	}
	if n := c.Counts(); n.Cached != 0 {
		t.Errorf("a spare copy is kept: %+v", n)
	}
	c.Release(b)
	x, _, ok := c.Acquire("", []int32{5, 5, 5, 5, 5, 5, 5, 5}, 0) // evicts the last copy
	if !ok {
		t.Fatal("no room")
	}
	c.Release(x)
	events, _ := sub.poll(nil)
	kinds := make([]EventKind, 0, len(events))
	for _, e := range events {
		kinds = append(kinds, e.Kind)
	}
	if want := []EventKind{Stored, Removed}; !slices.Equal(kinds, want) {
		t.Errorf("events %v, want %v", kinds, want)
	}
}

func TestSurvivingCopyOutlivesItsSuccessors(t *testing.T) {
	c := newCache(t, 4, 2)
	short, long := []int32{1, 1}, []int32{1, 1, 2, 2}
	a, _, _ := c.Acquire("", short, 0)
	b, _, _ := c.Acquire("", long, 0)
	c.Commit("", a, short, 0)
	c.Release(a) // cached before its successor, which b brings
	c.Commit("", b, long, 0)
	c.Release(b)
	if x, ok := c.Extend(nil, 3); !ok { // evicts one of the two
		t.Fatal("no room")
	} else {
		defer c.Release(x)
	}
	if got := c.Lookup("", []int32{1, 1, 2, 2, 3}); got != 2 {
		t.Errorf("Lookup = %d, want 2: the end of the chain goes first", got)
	}
}

func TestReleaseTwicePanics(t *testing.T) {
	c := newCache(t, 2, 2)
	b, _, _ := c.Acquire("", []int32{1}, 0)
	c.Release(b)
	defer func() {
		if recover() == nil {
			t.Error("a double release went unnoticed")
		}
	}()
	c.Release(b)
}

func TestSubscriberThatLagsSeesAGap(t *testing.T) {
	c := newCache(t, 2, 1)
	sub := c.Subscribe(0)
	defer sub.Close()
	for i := range int32(ring + 100) {
		put(t, c, i) // one stored, and from the third on one removed
	}
	events, gap, err := sub.Next(t.Context(), nil)
	if err != nil || !gap {
		t.Fatalf("gap %v, error %v, want a gap", gap, err)
	}
	seq := events[0].Seq
	for len(events) > 0 {
		for _, e := range events {
			if e.Seq != seq {
				t.Fatalf("event %d where %d is due", e.Seq, seq)
			}
			seq++
		}
		if events, gap = sub.poll(nil); gap {
			t.Fatal("a second gap")
		}
	}
	if last, dump := c.Dump(); last != seq-1 || len(dump) != 2 {
		t.Errorf("Dump = %d with %d blocks, want %d with 2", last, len(dump), seq-1)
	}
}

func TestNextWaits(t *testing.T) {
	c := newCache(t, 2, 1)
	sub := c.Subscribe(0)
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() {
		events, _, err := sub.Next(ctx, nil)
		if err == nil && (len(events) != 1 || events[0].Kind != Stored) {
			err = fmt.Errorf("events %+v", events)
		}
		got <- err
	}()
	put(t, c, 1)
	if err := <-got; err != nil {
		t.Error(err)
	}
	cancel()
	if _, _, err := sub.Next(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Next = %v, want the context's error", err)
	}
}

// The hash is part of what workers agree on.
func TestHashIsStable(t *testing.T) {
	got := Chain(nil, Root(42, "salt"), []int32{1, 2, 3, 4, 5, 6, 7}, 2)
	want := []Hash{0xe7343f0c0e7b103a, 0x55976488a79a19eb, 0x298b8a0999a751de}
	if !slices.Equal(got, want) {
		t.Errorf("Chain = %#x", got)
	}
}

func BenchmarkAcquireRelease(b *testing.B) {
	c := newCache(b, 4096, 16)
	tokens := make([]int32, 2048)
	put(b, c, tokens...)
	b.ReportAllocs()
	for b.Loop() {
		blocks, _, _ := c.Acquire("", tokens, 0)
		c.Release(blocks)
	}
}
