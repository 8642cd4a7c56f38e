package group

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster/yardmaster/core/measure"
)

func gauge(m *node, d measure.Desc) float64   { return m.reg.Gauge(d, "test").Value() }
func counted(m *node, d measure.Desc) float64 { return m.reg.Counter(d, "test").Value() }

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 3, func(_ int, c *Config) { c.TrailingLogs = 100 })
		defer closeAll(t, members)
		lead := leader(t, members, 5*time.Second)
		for range 60 {
			_, err := apply(t, lead, "x", time.Second)
			must(t, err)
			time.Sleep(500 * time.Millisecond)
		}
		must(t, lead.Snapshot(within(t, time.Second)))
		time.Sleep(watchEvery + time.Millisecond)
		for _, m := range members {
			if gauge(m, measure.RaftCommitIndex) < 60 || gauge(m, measure.RaftApplied) < 60 || gauge(m, measure.RaftTerm) < 1 {
				t.Error("commit, applied or term do not move")
			}
			if st := m.Status(); gauge(m, measure.RaftApplied) != float64(st.Applied) || gauge(m, measure.RaftLag) != float64(st.Commit-st.Applied) {
				t.Errorf("applied %v, lag %v; the status says %+v", gauge(m, measure.RaftApplied), gauge(m, measure.RaftLag), st)
			}
			if c := gauge(m, measure.RaftLastContact); c < 0 || c > 0.1 || (c != 0) != (m != lead) {
				t.Errorf("last contact %v, leader %v", c, m == lead)
			}
			if age := gauge(m, measure.RaftOldestLog); age < 29 || age > 40 {
				t.Errorf("oldest entry is %v s old", age)
			}
			if s := gauge(m, measure.RaftTrailing); s < 40 || s > 60 { // 100 entries at 2 a second
				t.Errorf("trailing entries cover %v s", s)
			}
			if counted(m, measure.RaftLeaderChanges) != 0 {
				t.Error("leader changes counted")
			}
		}
		if gauge(lead, measure.RaftSnapshotBytes) != 16 {
			t.Errorf("snapshot of %v bytes", gauge(lead, measure.RaftSnapshotBytes))
		}
		must(t, lead.Transfer(within(t, time.Second), ""))
		time.Sleep(2 * watchEvery)
		if n := counted(lead, measure.RaftLeaderChanges); n != 1 {
			t.Errorf("%v leader changes", n)
		}
	})
}

// failing is a store of snapshots on a full disk.
type failing struct{ raft.SnapshotStore }

var errFull = errors.New("no space left on device")

func (failing) Create(raft.SnapshotVersion, uint64, uint64, raft.Configuration, uint64, raft.Transport) (raft.SnapshotSink, error) {
	return nil, errFull
}

func TestSnapshotThatIsNotWrittenIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 1, func(_ int, c *Config) { c.Snapshots = failing{c.Snapshots} })
		defer closeAll(t, members)
		m := leader(t, members, 5*time.Second)
		_, err := apply(t, m, "x", time.Second)
		must(t, err)
		if err := m.Snapshot(within(t, time.Second)); err == nil || !strings.Contains(err.Error(), errFull.Error()) {
			t.Errorf("Snapshot = %v", err)
		}
		if counted(m, measure.RaftSnapshotFailures) != 1 || m.Fault() != nil {
			t.Errorf("%v failures, fault %v", counted(m, measure.RaftSnapshotFailures), m.Fault())
		}
	})
}

// Timers are monotonic: what a clock says that jumps is only in the entries'
// dates, and nothing depends on those but the gauge of the oldest one.
func TestClockJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 3, nil)
		defer closeAll(t, members)
		lead := leader(t, members, 5*time.Second)
		term := lead.Status().Term
		for _, jump := range []time.Duration{-10 * 365 * 24 * time.Hour, 10 * 365 * 24 * time.Hour, 0} {
			for _, m := range members {
				m.store.skew.Store(int64(jump))
			}
			for range 20 {
				_, err := apply(t, lead, "x", time.Second)
				must(t, err)
				time.Sleep(time.Second)
			}
			for _, m := range members {
				if m.Status().Term != term || m.Fault() != nil || gauge(m, measure.RaftOldestLog) < 0 {
					t.Errorf("jump of %v: term %d, fault %v, oldest entry %v s", jump, m.Status().Term, m.Fault(), gauge(m, measure.RaftOldestLog))
				}
			}
		}
		index, err := lead.ReadIndex(context.Background())
		must(t, err, lead.WaitApplied(within(t, time.Second), index))
	})
}
