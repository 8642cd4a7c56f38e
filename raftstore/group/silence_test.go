package group

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// Left alone the library takes up to three timeouts, and about two at the median.
func TestSilentLeaderIsReplacedWithinATimeoutAndAQuarter(t *testing.T) {
	for _, n := range []int{3, 5} {
		synctest.Test(t, func(t *testing.T) {
			members := cluster(t, n, nil)
			defer closeAll(t, members)
			for range 20 {
				silent := leader(t, members, 10*time.Second)
				isolate(members, slices.Index(members, silent))
				begin := time.Now()
				leader(t, without(members, silent), 10*time.Second)
				// It was heard last before it fell silent; leader looks every 10 ms.
				if took := time.Since(begin); took > defaultHeartbeat*5/4+20*time.Millisecond {
					t.Errorf("of %d members a new one led after %v", n, took)
				}
				connect(members, slices.Index(members, silent))
				time.Sleep(5 * defaultHeartbeat)
			}
		})
	}
}

// A member that hears nobody must not disturb those that hear one another.
func TestDeafMemberChangesNoLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 3, nil)
		defer closeAll(t, members)
		lead := leader(t, members, 10*time.Second)
		deaf := without(members, lead)[0]
		term := lead.Status().Term
		for range 5 {
			isolate(members, slices.Index(members, deaf))
			time.Sleep(5 * defaultHeartbeat)
			connect(members, slices.Index(members, deaf))
			time.Sleep(5 * defaultHeartbeat)
			if st := lead.Status(); !lead.Leading() || st.Term != term {
				t.Fatalf("leading %v, %+v; the term was %d", lead.Leading(), st, term)
			}
		}
	})
}
