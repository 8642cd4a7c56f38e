package assemble

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/yardmaster/yardmaster/cmd/internal/hugemem"
	"github.com/yardmaster/yardmaster/core/prefix"
)

// TestReplacedCopiesLeaveNothingBehind replaces a gateway's copy of the state again
// and again: the memory of its index goes with each.
func TestReplacedCopiesLeaveNothingBehind(t *testing.T) {
	planners, settings := startVoters(t, 1)
	c := clusterSettings(t)
	c.Cluster.Join, c.Cluster.TokenFile = []string{planners[0].PeerAddr()}, settings[0].Cluster.TokenFile
	n, err := enter(t.Context(), spoken(t), membership{ID: "g", Cluster: c.Cluster})
	if err != nil {
		t.Fatal(err)
	}
	var source hugemem.Source
	var alive atomic.Int64
	n.config.Prefix.Memory = func(x *prefix.Index) prefix.Memory {
		alive.Add(1)
		runtime.AddCleanup(x, func(alive *atomic.Int64) { alive.Add(-1) }, &alive)
		return hugemem.New(&source, x)
	}
	r := &replica{node: n, log: spoken(t).Log, process: quiet(), patience: strandedFor}
	r.seen.Store(n.store())
	r.end = background(r.keep)
	t.Cleanup(r.close)
	for range 5 {
		waitFor(t, "the copy counts", func() bool { return r.ready() == nil && r.seen.Load() == n.store() })
		r.end()
		if err := r.replace(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.end = background(r.keep)
	}
	waitFor(t, "the last copy counts", func() bool { return r.ready() == nil && r.seen.Load() == n.store() })
	one := int64(32 << 20) // hugemem's regions
	waitFor(t, "one index is left", func() bool {
		runtime.GC()
		return alive.Load() == 1 && source.Mapped() <= one
	})
}
