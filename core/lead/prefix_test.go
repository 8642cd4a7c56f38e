package lead

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/prefix"
)

// A worker that has left is detached and swept by the leader, and by nobody else.
func TestPrefixStateFollowsTheFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := prefix.NewState(prefix.Options{})
		for _, id := range []fleet.WorkerID{"a", "b"} {
			state.Apply(&prefix.Frame{Kind: prefix.FrameAttach, Worker: id, Epoch: 1})
			state.Apply(&prefix.Frame{Kind: prefix.FrameDelta, Worker: id, Epoch: 1, First: 1, Last: 1, Stores: []prefix.Hash{7}, Sum: prefix.Hash(7).Sum()})
		}
		view := fleet.NewView(5, []fleet.Worker{{ID: "b", Epoch: 1}})
		var leading atomic.Bool
		registry := &measure.Registry{}
		ctx, cancel := context.WithCancel(t.Context())
		var task sync.WaitGroup
		task.Go(func() {
			RunPrefix(ctx, PrefixDuties{
				State:    state,
				Propose:  func(_ context.Context, f *prefix.Frame) (prefix.Outcome, error) { return state.Apply(f), nil },
				View:     func() *fleet.View { return view },
				Leading:  leading.Load,
				Clock:    clock.Real{},
				Registry: registry,
			})
		})
		gauge := func(d measure.Desc, labels ...string) float64 { return registry.Gauge(d, labels...).Value() }
		pass(time.Second)
		if n := state.Stats().Workers; n != 2 || gauge(measure.PrefixPairs) != 2 {
			t.Errorf("a follower left %d workers and shows %v pairs", n, gauge(measure.PrefixPairs))
		}
		leading.Store(true)
		pass(time.Second)
		if _, ok := state.Table().Find("b", 1); !ok || state.Stats().Workers != 1 || state.Sweeping() {
			t.Errorf("the leader left %+v", state.Stats())
		}
		if gauge(measure.PrefixPairs) != 1 || gauge(measure.PrefixBlocks) != 1 || gauge(measure.PrefixBytes) == 0 || gauge(measure.PrefixWorkers, "degraded") != 1 {
			t.Errorf("gauges: %v pairs, %v blocks, %v bytes", gauge(measure.PrefixPairs), gauge(measure.PrefixBlocks), gauge(measure.PrefixBytes))
		}
		cancel()
		task.Wait()
	})
}

// The leader of the prefix group need not lead the core group, and its view may
// be old: what it cannot know yet it leaves alone, and a leader that was deposed
// beside it changes nothing.
func TestPrefixLeaderWithAnOldView(t *testing.T) {
	state := prefix.NewState(prefix.Options{})
	for i, id := range []fleet.WorkerID{"gone", "again", "new"} {
		state.Apply(&prefix.Frame{Kind: prefix.FrameAttach, Worker: id, Epoch: fleet.Epoch(3 + i)})
	}
	old := fleet.NewView(4, []fleet.Worker{{ID: "again", Epoch: 2}}) // again is 4 by now, new is 5
	fresh := fleet.NewView(5, []fleet.Worker{{ID: "again", Epoch: 4}, {ID: "new", Epoch: 5}})
	tend := func(view *fleet.View) {
		d := PrefixDuties{
			State:   state,
			Propose: func(_ context.Context, f *prefix.Frame) (prefix.Outcome, error) { return state.Apply(f), nil },
			View:    func() *fleet.View { return view },
		}
		if err := d.tend(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	attached := func(id fleet.WorkerID, epoch fleet.Epoch) bool {
		_, ok := state.Table().Find(id, epoch)
		return ok
	}
	tend(fleet.NewView(0, nil)) // a node that has just joined
	if state.Stats().Workers != 3 {
		t.Fatal("an empty view detached workers")
	}
	tend(old)
	if attached("gone", 3) || !attached("new", 5) {
		t.Errorf("gone %v, new %v", attached("gone", 3), attached("new", 5))
	}
	state.Apply(&prefix.Frame{Kind: prefix.FrameAttach, Worker: "again", Epoch: 4})
	tend(fresh)
	tend(fresh)
	if !attached("again", 4) || !attached("new", 5) || state.Stats().Workers != 2 {
		t.Errorf("left %+v", state.Stats())
	}
}
