package actuate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/scale"
)

// world is a machine whose workers come up and end by the test's word.
type world struct {
	mu       sync.Mutex
	registry measure.Registry
	process  *Process
	epoch    fleet.Epoch
	children map[fleet.WorkerID]*fakeChild // that have not ended
	fleet    map[fleet.WorkerID]fleet.Worker
	order    []string // of what was asked
}

type fakeChild struct {
	world    *world
	key      scale.Key
	id       fleet.WorkerID
	done     chan struct{}
	asked    chan struct{}
	once     sync.Once
	err      error
	restarts int
}

func (c *fakeChild) Stop(ctx context.Context) error {
	c.world.note("stop " + string(c.id))
	c.once.Do(func() { close(c.asked) })
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		c.world.end(c.id, nil)
		return errors.New("killed")
	}
}

func (c *fakeChild) Done() <-chan struct{} { return c.done }
func (c *fakeChild) Err() error            { return c.err }
func (c *fakeChild) Restarts() int         { return c.restarts }

func newWorld(c ProcessConfig) *world {
	w := &world{children: map[fleet.WorkerID]*fakeChild{}, fleet: map[fleet.WorkerID]fleet.Worker{}}
	c.Serves = func(key scale.Key) bool { return key.Model == "m" }
	c.Registry = &w.registry
	c.Drain = func(_ context.Context, id fleet.WorkerID, epoch fleet.Epoch) error {
		w.note(fmt.Sprintf("drain %s/%d", id, epoch))
		w.mu.Lock()
		defer w.mu.Unlock()
		one, ok := w.fleet[id]
		if !ok || one.Epoch != epoch {
			return errors.New("gone")
		}
		one.Draining = true
		w.fleet[id] = one
		return nil
	}
	c.Start = func(key scale.Key, id fleet.WorkerID) Child {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.children[id] != nil {
			panic("an id that is in use was given to another worker: " + id)
		}
		child := &fakeChild{world: w, key: key, id: id, done: make(chan struct{}), asked: make(chan struct{})}
		w.children[id] = child
		return child
	}
	w.process = NewProcess(c)
	return w
}

func (w *world) note(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.order = append(w.order, what)
}

// up registers a worker.
func (w *world) up(id fleet.WorkerID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.epoch++
	child := w.children[id]
	w.fleet[id] = fleet.Worker{ID: id, Epoch: w.epoch, Role: child.key.Role, Models: []string{child.key.Model}}
}

// end ends a process, and its registration.
func (w *world) end(id fleet.WorkerID, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	child := w.children[id]
	delete(w.children, id)
	delete(w.fleet, id)
	if child != nil {
		child.err = err
		close(child.done)
	}
}

func (w *world) view() *fleet.View {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []fleet.Worker
	for _, one := range w.fleet {
		out = append(out, one)
	}
	return fleet.NewView(1, out)
}

func (w *world) ids() (out []fleet.WorkerID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.children {
		out = append(out, id)
	}
	return out
}

var (
	prefillKey = scale.Key{Model: "m", Role: fleet.RolePrefill}
	decodeKey  = scale.Key{Model: "m", Role: fleet.RoleDecode}
)

func planOf(budget, prefill, decode uint32) *scale.Plan {
	return &scale.Plan{Budget: budget, Pools: []scale.PoolPlan{{Key: prefillKey, Desired: prefill}, {Key: decodeKey, Desired: decode}}}
}

func (w *world) step(plan *scale.Plan) {
	w.process.Step(time.Now(), plan, w.view())
	synctest.Wait()
}

func (w *world) expect(t *testing.T, want ...fleet.WorkerID) {
	t.Helper()
	got := map[fleet.WorkerID]bool{}
	for _, id := range w.ids() {
		got[id] = true
	}
	wanted := map[fleet.WorkerID]bool{}
	for _, id := range want {
		wanted[id] = true
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Errorf("processes (-want +got):\n%s", diff)
	}
}

func TestGrowsAFewAtATimeWithinTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(ProcessConfig{})
		w.step(nil)
		w.expect(t)
		plan := planOf(4, 1, 4) // more than the budget: a plan of one that was larger
		w.step(plan)
		w.expect(t, "prefill-0", "decode-0") // two start at once
		w.step(plan)
		w.expect(t, "prefill-0", "decode-0")
		w.up("prefill-0")
		w.up("decode-0")
		w.step(plan)
		w.expect(t, "prefill-0", "decode-0", "decode-1", "decode-2")
		w.up("decode-1")
		w.up("decode-2")
		w.step(plan)
		w.expect(t, "prefill-0", "decode-0", "decode-1", "decode-2") // the budget
		if got := w.registry.Gauge(measure.ScaleProcesses, "serving").Value(); got != 4 {
			t.Errorf("%v serve by the gauge", got)
		}
		w.finish(t)
	})
}

// finish closes the actuator over workers that end when they are asked.
func (w *world) finish(t *testing.T) {
	t.Helper()
	for _, id := range w.ids() {
		w.mu.Lock()
		child := w.children[id]
		w.mu.Unlock()
		go func() {
			<-child.asked
			w.end(id, nil)
		}()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := w.process.Close(ctx); err != nil {
		t.Error(err)
	}
	w.expect(t)
}

func TestShrinksByDrainingTheYoungest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(ProcessConfig{Starts: 9})
		w.step(planOf(4, 1, 3))
		for _, id := range []fleet.WorkerID{"prefill-0", "decode-0", "decode-1"} {
			w.up(id)
		}
		w.order = nil
		w.step(planOf(4, 2, 1)) // decode-2 has not come up yet, so it goes before decode-1
		want := []string{"stop decode-2", "drain decode-1/3", "stop decode-1"}
		got := map[string]bool{}
		for _, o := range w.order {
			got[o] = true
		}
		for _, o := range want {
			if !got[o] {
				t.Errorf("%v, lacks %s", w.order, o)
			}
		}
		// Those that drain have their places in the budget, and their names.
		w.step(planOf(4, 2, 1))
		w.expect(t, "prefill-0", "decode-0", "decode-1", "decode-2")
		w.end("decode-2", nil)
		w.step(planOf(4, 2, 1))
		w.expect(t, "prefill-0", "prefill-1", "decode-0", "decode-1")
		w.up("prefill-1")
		w.step(planOf(8, 2, 2))
		w.expect(t, "prefill-0", "prefill-1", "decode-0", "decode-1", "decode-2") // not decode-1 again
		w.end("decode-1", nil)
		w.finish(t)
	})
}

func TestOthersWorkersCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(ProcessConfig{Starts: 9})
		w.fleet["decode-0"] = fleet.Worker{ID: "decode-0", Epoch: 100, Role: fleet.RoleDecode, Models: []string{"m"}}
		w.fleet["elsewhere"] = fleet.Worker{ID: "elsewhere", Epoch: 101, Role: fleet.RoleDecode, Models: []string{"other"}, Draining: true}
		w.step(planOf(4, 1, 4))
		w.expect(t, "prefill-0", "decode-1") // 4 less the two of others
		w.up("decode-1")
		w.step(planOf(4, 1, 0))
		if got := w.order[len(w.order)-1]; got != "stop decode-1" {
			t.Errorf("%s: others' workers are not ours to end", got)
		}
		w.end("decode-1", nil)
		w.finish(t)
	})
}

func TestPausesAfterWorkersThatCannotStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(ProcessConfig{FirstPause: time.Second, LongestPause: 4 * time.Second})
		plan, began := planOf(4, 0, 1), time.Now()
		var starts []time.Duration
		for time.Since(began) < 16*time.Second {
			w.step(plan)
			if len(w.ids()) > 0 {
				starts = append(starts, time.Since(began))
				w.end("decode-0", errors.New("unknown flag"))
			}
			time.Sleep(100 * time.Millisecond)
		}
		// It is seen a step after it ended.
		const ms = time.Millisecond
		want := []time.Duration{0, 1100 * ms, 3200 * ms, 7300 * ms, 11400 * ms, 15500 * ms}
		if diff := cmp.Diff(want, starts); diff != "" {
			t.Error(diff)
		}
		w.finish(t)
	})
}

func TestKillsWhatDoesNotDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(ProcessConfig{DrainTime: 10 * time.Second})
		w.step(planOf(0, 0, 1))
		w.up("decode-0")
		w.step(planOf(0, 0, 0))
		time.Sleep(9 * time.Second)
		w.step(planOf(0, 0, 0))
		w.expect(t, "decode-0")
		time.Sleep(2 * time.Second)
		w.step(planOf(0, 0, 0))
		w.expect(t)
		if got := w.registry.Counter(measure.ScaleStarts, "killed").Value(); got != 1 {
			t.Errorf("%v killed", got)
		}
		// Closing kills what drains too, when its time is over.
		w.step(planOf(0, 0, 2))
		w.up("decode-0")
		w.step(planOf(0, 0, 1)) // decode-1 is stopped, and does not end
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.process.Close(ctx); err == nil {
			t.Error("nobody was killed")
		}
		w.expect(t)
	})
}

func TestAdoptedWorkersAreManaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(ProcessConfig{})
		child := w.process.cfg.Start(decodeKey, "first")
		w.process.Adopt(decodeKey, "first", child)
		w.up("first")
		w.step(planOf(0, 0, 2))
		w.expect(t, "first", "decode-0")
		w.step(planOf(0, 0, 0))
		w.end("first", nil)
		w.end("decode-0", nil)
		w.step(planOf(0, 0, 0))
		w.finish(t)
	})
}

// A worker that hangs while it starts is given up, and one that crashes again and again
// holds up no other.
func TestWorkersThatDoNotComeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(ProcessConfig{Starts: 1, StartTime: time.Minute, DrainTime: time.Second, FirstPause: 10 * time.Second})
		w.step(planOf(9, 1, 1))
		w.expect(t, "prefill-0")
		w.children["prefill-0"].restarts = 3
		w.step(planOf(9, 1, 1))
		w.expect(t, "prefill-0", "decode-0")
		w.up("decode-0")
		time.Sleep(61 * time.Second)
		w.step(planOf(9, 1, 1))
		time.Sleep(2 * time.Second) // it does not end either
		w.step(planOf(9, 1, 1))
		w.expect(t, "decode-0")
		time.Sleep(10 * time.Second)
		w.step(planOf(9, 1, 1))
		w.expect(t, "decode-0", "prefill-0")
		if got := w.registry.Counter(measure.ScaleStarts, "gave_up").Value(); got != 1 {
			t.Errorf("%v given up", got)
		}
		w.finish(t)
	})
}
