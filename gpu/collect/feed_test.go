package collect

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/prefix"
)

// engine is a source driven by the test.
type engine struct{ events chan []Event }

func newEngine() *engine { return &engine{events: make(chan []Event)} }

func (e *engine) Run(ctx context.Context, t *Translator) error {
	for {
		select {
		case events := <-e.events:
			t.Apply(events...)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func root(id uint64, tokens ...int32) Event {
	return Event{Kind: Stored, Blocks: []uint64{id}, Root: true, Tokens: tokens, BlockTokens: len(tokens)}
}

// rig is a feed between an engine and a planner.
type rig struct {
	*planner
	engine *engine
	feed   *Feed
	epoch  atomic.Uint64
	stop   func()
}

func newRig(t *testing.T, seed uint64) *rig {
	t.Helper()
	r := &rig{planner: newPlanner(seed), engine: newEngine()}
	r.epoch.Store(1)
	var err error
	r.feed, err = NewFeed(Config{
		Worker: self, Epoch: func() fleet.Epoch { return fleet.Epoch(r.epoch.Load()) },
		Open: r.open, Scope: scope, Sources: []Source{r.engine},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var tasks sync.WaitGroup
	tasks.Go(func() { r.feed.Run(ctx) })
	r.stop = func() { cancel(); tasks.Wait() }
	return r
}

// check waits as long as a planner may take to be right again, and compares.
func (r *rig) check(t *testing.T, wait time.Duration) {
	t.Helper()
	time.Sleep(wait)
	synctest.Wait()
	want := r.feed.mirror.list()
	got, exact := r.holds(fleet.Epoch(r.epoch.Load()))
	if !exact || !slices.Equal(got, want) {
		t.Errorf("the index has %d blocks (exact: %v), the worker %d\n%s", len(got), exact, len(want), strings.Join(r.log, "\n"))
	}
}

// TestIndexEqualsCacheAfterQuiescence is invariant 9: whatever is lost, repeated,
// swapped, cut or restarted, once things are quiet the index equals the cache.
func TestIndexEqualsCacheAfterQuiescence(t *testing.T) {
	seeds := uint64(90 / shorter)
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) { history(t, seed) })
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func history(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	r := newRig(t, seed)
	defer r.stop()
	r.locked(func() { r.faults = []float64{0, .02, .3}[seed%3] })
	var held []uint64
	next := uint64(1)
	for range 60 {
		switch n := rng.IntN(100); {
		case n < 50: // store, often more than a frame holds
			var events []Event
			for range 1 + rng.IntN(1<<rng.IntN(13)) {
				events = append(events, root(next, int32(next), int32(seed)))
				held = append(held, next)
				next++
			}
			r.engine.events <- events
		case n < 80 && len(held) > 0:
			rng.Shuffle(len(held), func(i, k int) { held[i], held[k] = held[k], held[i] })
			gone := 1 + rng.IntN(len(held))
			r.engine.events <- []Event{{Kind: Removed, Blocks: slices.Clone(held[:gone])}}
			held = held[gone:]
		case n < 83:
			r.engine.events <- []Event{{Kind: Cleared}}
			held = nil
		case n < 88:
			r.cut()
		case n < 91:
			r.restart()
		case n < 94: // the worker has registered anew
			epoch := r.epoch.Add(1)
			r.locked(func() { r.planner.epoch = fleet.Epoch(epoch) })
		default:
			time.Sleep(time.Duration(rng.IntN(50)) * time.Millisecond)
		}
	}
	r.locked(func() { r.faults = 0 })
	r.check(t, 25*time.Second) // a lost last frame is noticed by its missing acknowledgement
	if got := len(r.feed.mirror.list()); got != len(held) {
		t.Errorf("the mirror has %d blocks, the engine %d", got, len(held))
	}
}

// TestLostFramesAreRepairedWithinASecond is case 19 for the way from worker to
// planner: frames with changes 7 to 9 get lost.
func TestLostFramesAreRepairedWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		defer r.stop()
		r.locked(func() {
			r.lose = func(f *prefix.Frame) bool {
				return f.Kind == prefix.FrameDelta && f.First >= 7 && f.Last <= 9
			}
		})
		for id := range uint64(12) {
			r.engine.events <- []Event{root(id+1, int32(id))}
			time.Sleep(10 * time.Millisecond)
		}
		r.check(t, time.Second)
	})
}

// TestALostRepairIsNoticed: the repair with which a feed begins is lost, in part or
// whole, and the changes behind it arrive. Their acknowledgement is not the repair's.
func TestALostRepairIsNoticed(t *testing.T) {
	for name, lost := range map[string]func(*prefix.Frame) bool{
		"its beginning": func(f *prefix.Frame) bool { return f.Kind == prefix.FrameBegin },
		"its end":       func(f *prefix.Frame) bool { return f.Kind == prefix.FrameEnd },
		"all of it":     func(f *prefix.Frame) bool { return f.Kind == prefix.FrameBegin || f.Kind == prefix.FrameEnd },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, 1)
				defer r.stop()
				r.locked(func() { r.lose = lost })
				time.Sleep(20 * time.Millisecond)
				r.locked(func() { r.lose = nil })
				r.engine.events <- []Event{root(1, 1)}
				r.check(t, 2*linkTimeout)
			})
		})
	}
}

// TestAPlannerThatRestartedKnowsAtOnce: a new planner is told everything.
func TestAPlannerThatRestartedKnowsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		defer r.stop()
		var events []Event
		for id := range uint64(10_000) {
			events = append(events, root(id+1, int32(id)))
		}
		r.engine.events <- events
		r.check(t, time.Second)
		r.restart()
		r.check(t, time.Second)
	})
}

// TestRepairsTellOnlyWhatDiffers: one lost block costs one bucket, not a dump.
func TestRepairsTellOnlyWhatDiffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		defer r.stop()
		var events []Event
		for id := range uint64(10_000) {
			events = append(events, root(id+1, int32(id)))
		}
		r.engine.events <- events
		r.check(t, time.Second)
		told := 0
		r.locked(func() {
			r.lose = func(f *prefix.Frame) bool {
				told += len(f.Stores)
				return f.Kind == prefix.FrameDelta && len(f.Stores) == 1 && f.Last == 10_001
			}
		})
		r.engine.events <- []Event{root(10_001, 10_001)}
		time.Sleep(20 * time.Millisecond)
		r.engine.events <- []Event{root(10_002, 10_002)}
		r.check(t, time.Second)
		if told > 10_000/prefix.NumBuckets*4 {
			t.Errorf("%d blocks were told for one that was lost", told)
		}
	})
}

// TestAnAbsentPlannerCostsNetChangesOnly: what comes and goes meanwhile is never
// sent.
func TestAnAbsentPlannerCostsNetChangesOnly(t *testing.T) {
	m := NewMirror(0)
	tr := NewTranslator(m, scope)
	for id := range uint64(5000) {
		tr.Apply(root(id+1, int32(id)))
		if id >= 10 {
			tr.Apply(Event{Kind: Removed, Blocks: []uint64{id - 9}})
		}
	}
	if s := m.Stats(); s.Pending != 10 || s.Held != 10 {
		t.Errorf("%+v, want 10 held and pending", s)
	}
}
