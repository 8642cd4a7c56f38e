package live_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/policies/live"
)

// of makes the rig's fleet one of n workers.
func (r *rig) of(n int) {
	var workers []fleet.Worker
	for i := range n {
		workers = append(workers, fleet.Worker{ID: fleet.WorkerID(fmt.Sprintf("w%d", i)), Epoch: 1, Role: fleet.RoleBoth, Models: []string{"m"}})
	}
	r.table, r.view = load.NewTable(&measure.Registry{}), fleet.NewView(2, workers)
}

func TestDecisionsDoNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	c := newCluster()
	r := newRig(t, c, live.Config{ShadowShare: 1})
	one := c.put(t, "mine", "1", rollout.Router, wasmRouter("mine", "1", each(first)))
	two := c.put(t, "mine", "2", rollout.Router, wasmRouter("mine", "2", each(last)))
	r.await(c.promote(t, only("mine", one)))
	q := route.Query{Model: "m", Now: time.Now(), Session: 3}
	lined := r.table.Columns(r.view)
	decide := func() {
		if _, err := r.router.Decide(&q, lined, nil, route.Caches{}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string) {
		decide()
		if n := testing.AllocsPerRun(200, decide); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
	check("one policy")
	c.change(t, rollout.Change{Verb: rollout.VerbCanary, Stage: only("mine", two), Share: .5})
	r.await(c.change(t, rollout.Change{Verb: rollout.VerbShadow, Stage: only("mine", two)}))
	check("with canary and shadow")
	parts := rollout.Stage{Parts: []rollout.Part{rollout.NewPart("mine", one, 1), rollout.NewPart("mine", two, 2), rollout.NewPart("sticky", rollout.Digest{}, 1)}}
	r.await(c.promote(t, parts))
	check("several")
}

// BenchmarkDecide is a whole decision: by a native policy, and by a policy in Wasm
// that is bound and gives each candidate its place.
func BenchmarkDecide(b *testing.B) {
	c := newCluster()
	r := newRig(b, c, live.Config{})
	d := c.put(b, "mine", "1", rollout.Router, wasmRouter("mine", "1", each(first)))
	for _, n := range []int{16, 256} {
		r.of(n)
		lined, now := r.table.Columns(r.view), time.Now()
		run := func(router *route.Router) func(b *testing.B) {
			return func(b *testing.B) {
				b.ReportAllocs()
				q := route.Query{Model: "m", Now: now, Session: 3}
				for b.Loop() {
					if _, err := router.Decide(&q, lined, nil, route.Caches{}); err != nil {
						b.Fatal(err)
					}
				}
			}
		}
		c.must(b, func(t *rollout.Table, i uint64) (*rollout.Table, error) {
			if _, ok := t.Binding(rollout.Router, ""); !ok {
				return t, nil
			}
			return t.Change(rollout.Change{Kind: rollout.Router, Verb: rollout.VerbClear}, i)
		})
		b.Run(fmt.Sprintf("fixed/%d", n), run(route.New(route.Config{Policy: route.LeastRequest{}, Mode: route.Never})))
		r.await(c.promote(b, rollout.NativeStage("least-request")))
		b.Run(fmt.Sprintf("bound-native/%d", n), run(r.router))
		r.await(c.promote(b, only("mine", d)))
		b.Run(fmt.Sprintf("bound-wasm/%d", n), run(r.router))
	}
}
