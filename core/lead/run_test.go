package lead

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/planner"
)

// fakePlanner applies at once, unless told to fail.
type fakePlanner struct {
	mu      sync.Mutex
	machine *planner.Machine
	index   uint64
	leading bool
	fail    error
}

func (f *fakePlanner) Propose(_ context.Context, cmd planner.Command) (planner.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return planner.Result{}, f.fail
	}
	entry, err := planner.Encode(planner.RequestID{}, cmd)
	if err != nil {
		return planner.Result{}, err
	}
	f.index++
	return f.machine.Apply(f.index, entry)
}

func (f *fakePlanner) View() *fleet.View { return f.machine.View() }

func (f *fakePlanner) Leading() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leading
}

func (f *fakePlanner) set(leading bool, fail error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leading, f.fail = leading, fail
}

// pass lets time pass and all that was due be done: what a test changes next meets no
// step half way.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakePlanner{machine: planner.New(), leading: true}
		worker := fleet.Worker{ID: "a", Incarnation: "i", Role: fleet.RoleBoth, Engine: "cpu", Models: []string{"m"}, URL: "u"}
		if _, err := f.Propose(t.Context(), planner.RegisterWorker{Worker: worker}); err != nil {
			t.Fatal(err)
		}
		var registry measure.Registry
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		leases := NewLeases(Config{})
		wg.Go(func() {
			Run(ctx, Duties{Planner: f, Leases: leases, Clock: clock.Real{}, Registry: &registry})
		})
		defer wg.Wait()
		defer cancel()

		pass(time.Second)
		gauge := registry.Gauge(measure.Workers, "m", "both", "ready")
		if gauge.Value() != 1 {
			t.Errorf("workers gauge %v", gauge.Value())
		}
		f.set(true, errors.New("no quorum"))
		pass(time.Minute)
		if len(f.View().Workers) != 1 {
			t.Fatal("expired without a commit")
		}
		f.set(false, nil)
		pass(time.Minute)
		if len(f.View().Workers) != 1 {
			t.Fatal("a follower expired a worker")
		}
		f.set(true, nil)
		pass(DefaultGrace - time.Second)
		if len(f.View().Workers) != 1 {
			t.Fatal("a new leader expired a worker within its grace")
		}
		pass(3 * time.Second)
		if len(f.View().Workers) != 0 {
			t.Error("a silent worker was not expired")
		}
		if n := registry.Counter(measure.LeaseExpiries).Value(); n != 1 || gauge.Value() != 0 {
			t.Errorf("%v expiries counted, workers gauge %v", n, gauge.Value())
		}
	})
}

func TestOneComplaintPerCause(t *testing.T) {
	var c complaint
	a, b := errors.New("no quorum"), errors.New("closed")
	for i, step := range []struct {
		err  error
		want bool
	}{{nil, false}, {a, true}, {a, false}, {b, true}, {nil, false}, {b, true}} {
		if got := c.fresh(step.err); got != step.want {
			t.Errorf("step %d, %v: %v", i, step.err, got)
		}
	}
}
