package prefix

import (
	"bytes"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// counted counts the memories that were asked for and not freed yet.
type counted struct {
	Memory
	live *atomic.Int64
	once sync.Once
}

func (c *counted) Free() {
	c.Memory.Free()
	c.once.Do(func() { c.live.Add(-1) })
}

func countMemory() (memory func(*Index) Memory, live *atomic.Int64) {
	live = new(atomic.Int64)
	from := hugeMemory()
	return func(x *Index) Memory {
		live.Add(1)
		c := &counted{Memory: from(x), live: live}
		runtime.AddCleanup(x, (*counted).Free, c)
		return c
	}, live
}

// settles collects garbage until want memories are left.
func settles(t *testing.T, live *atomic.Int64, want int64) {
	t.Helper()
	for range 500 {
		if runtime.GC(); live.Load() == want {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d indices keep their memory, want %d", live.Load(), want)
}

// wholeChain is a chain that the worker holds in every stateOf.
func wholeChain(n int) []Hash {
	chain := make([]Hash, n)
	for i := range chain {
		chain[i] = Hash(i+1) * 0x9E3779B97F4A7C15
	}
	return chain
}

// stateOf is a state with one worker that holds wholeChain(n).
func stateOf(t *testing.T, memory func(*Index) Memory, n int) *State {
	t.Helper()
	s := NewState(Options{Memory: memory})
	for _, step := range []struct {
		frame Frame
		want  Outcome
	}{
		{Frame{Kind: FrameAttach, Worker: "w", Epoch: 1}, Applied},
		{Frame{Kind: FrameDelta, Worker: "w", Epoch: 1, First: 1, Last: 1, Stores: wholeChain(n), Sum: sumOf(wholeChain(n))}, Inexact},
	} {
		if got := s.Apply(&step.frame); got != step.want {
			t.Fatal(got)
		}
	}
	return s
}

func TestRestoreGivesMemoryBack(t *testing.T) {
	memory, live := countMemory()
	s := stateOf(t, memory, 3000)
	good := snapshotOf(t, s)
	for n := range 20 {
		if err := s.Restore(bytes.NewReader(good)); err != nil {
			t.Fatal(err)
		}
		before := live.Load()
		for end := 0; end < len(good); end += len(good)/7 + 1 {
			if err := s.Restore(bytes.NewReader(good[:end])); err == nil {
				t.Fatal("a cut snapshot was restored")
			}
		}
		if now := live.Load(); now > before {
			t.Fatalf("restore %d: those that failed keep %d memories", n, now-before)
		}
	}
	settles(t, live, 1)
	runtime.KeepAlive(s) // and no longer
	settles(t, live, 0)
}

// TestReadersOutliveRestore reads by old tables, with hits that remember slots of
// old indices, while restores replace them. What is unmapped too early is a fault.
func TestReadersOutliveRestore(t *testing.T) {
	memory, live := countMemory()
	const blocks = 400
	s := stateOf(t, memory, blocks)
	good, chain := snapshotOf(t, s), wholeChain(blocks)
	var over atomic.Bool
	var readers sync.WaitGroup
	for reader := range 3 {
		readers.Go(func() {
			var h Hits
			for table := s.Table(); !over.Load(); {
				for range 50 * (reader + 1) {
					table.Index.Lookup(chain, &h)
					row, ok := table.Find("w", 1)
					if !ok || h.Of(row.Worker) != blocks {
						t.Errorf("%d blocks, %v", h.Of(row.Worker), ok)
						return
					}
				}
				runtime.GC()
				table = s.Table()
			}
		})
	}
	for range fewer(60, 20) {
		if err := s.Restore(bytes.NewReader(good)); err != nil {
			t.Error(err)
		}
		runtime.GC()
	}
	over.Store(true)
	readers.Wait()
	settles(t, live, 1)
	runtime.KeepAlive(s)
}

// TestHitsPinTheirIndex looks up with nothing but hits left of the index.
func TestHitsPinTheirIndex(t *testing.T) {
	memory, live := countMemory()
	var h Hits
	chain := wholeChain(400)
	use := func() {
		x := stateOf(t, memory, len(chain)).Table().Index
		for range 3 { // the second one remembers, the third one goes by that
			x.Lookup(chain, &h)
		}
	}
	use()
	for range 5 {
		runtime.GC()
	}
	if live.Load() != 1 {
		t.Fatal("hits do not keep what they remember")
	}
	use() // another index: the hits let go of the first one
	settles(t, live, 1)
	runtime.KeepAlive(&h)
	h = Hits{}
	settles(t, live, 0)
}
