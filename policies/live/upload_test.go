package live_test

import (
	"testing"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/policies/live"
)

// A version that fell, was deleted and uploaded again begins anew, also while the old
// one is still used.
func TestAnUploadIsNotTheOneBefore(t *testing.T) {
	c := newCluster()
	r := newRig(t, c, live.Config{})
	wasm := wasmRouter("mine", "1", each(traps))
	d := c.put(t, "mine", "1", rollout.Router, wasm)
	r.await(c.promote(t, only("mine", d)))
	held := r.node.Choose(&route.Query{Model: "m"}) // keeps the set
	eventually(t, "it is quarantined", func() bool {
		r.decide(route.Query{})
		v, _ := c.Rollout().Version(d)
		return v.Quarantined > 0
	})
	r.await(c.Rollout().Index())
	c.must(t, func(t *rollout.Table, i uint64) (*rollout.Table, error) { return t.Delete(d, i) })
	c.put(t, "mine", "1", rollout.Router, wasm)
	before := r.count(measure.PolicyFaults, "mine@1", "trap")
	r.await(c.promote(t, only("mine", d)))
	r.decide(route.Query{})
	if now := r.count(measure.PolicyFaults, "mine@1", "trap"); now != before+1 {
		t.Errorf("%v traps, there were %v: it was not asked", now, before)
	}
	r.node.Done(held)
}
