package hub

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/measure"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each gateway sees what the others have, tokens included, and its own once.
func TestGatewaysKnowEachOther(t *testing.T) {
	bubble(t, 3, func(r *rig) {
		pass(2 * settle)
		a := r.nodes[0].reserve(3, 1)
		b := r.nodes[1].reserve(3, 2)
		c := r.nodes[2].reserve(3, 4)
		pass(2*every + time.Millisecond)
		r.others("all", 3, map[int]int{0: 6, 1: 5, 2: 3})
		s := r.nodes[1].slots()[3]
		if s.InFlight() != 2 || s.Foreign() != 5 || s.QueuedPrompt() != 700 || s.Context() != 1400 || s.OthersIn(load.Prefill) != 5 {
			t.Errorf("n1: %d own, %d foreign, %d queued, %d held", s.InFlight(), s.Foreign(), s.QueuedPrompt(), s.Context())
		}
		if g := r.nodes[1].metric(measure.HubGateways.Name); g != 3 {
			t.Errorf("%v gateways", g)
		}
		a()
		c()
		pass(2*every + time.Millisecond)
		r.others("after the end of some", 3, map[int]int{0: 2, 1: 0, 2: 2})
		b()
		pass(2*every + time.Millisecond)
		r.others("after the end of all", 3, map[int]int{0: 0, 1: 0, 2: 0})
	})
}
