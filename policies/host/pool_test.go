package host_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/policies/host"
)

// clocked are services whose clock is moved by the test.
type clocked struct {
	services
	at atomic.Int64
}

func (c *clocked) NowMillis() int64 { return c.at.Load() }

// An instance that cannot be replaced is asked for again; while none is left that is the
// policy's fault, and not that all are busy.
func TestLostInstancesComeBack(t *testing.T) {
	now := &clocked{}
	p := load(t, newHost(t, now), parts{
		score:      "block call 4 i64.const 1 i64.ne br_if 0 unreachable end i32.const 0",
		initialise: "block call 4 i64.eqz br_if 0 unreachable end",
	}.build(), 2)
	r, err := host.NewRouter(p, route.LeastRequest{})
	if err != nil {
		t.Fatal(err)
	}
	const n = 4
	c, scores := candidates(n), make([]float64, n)
	until := func(what string, want host.Fault) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); r.Try(&route.Query{}, c, scores) != want; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("in vain: %s; %d are lost", what, p.Lost())
			}
		}
	}
	now.at.Store(1)
	until("all are lost", host.FaultLost)
	if !host.FaultLost.Guilty() || p.Lost() != 2 {
		t.Errorf("%d are lost, guilty %v", p.Lost(), host.FaultLost.Guilty())
	}
	now.at.Store(0)
	until("they come back", host.NoFault)
}
