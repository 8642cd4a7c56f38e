package raftstore

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// recoverAlone stops all and makes the first of them the whole cluster.
func recoverAlone(t *testing.T, nodes []*node) Recovery {
	t.Helper()
	for _, n := range nodes {
		n.stop()
	}
	done, err := Recover(RecoverConfig{Dir: nodes[0].cfg.Dir})
	if err != nil || !done.Done || done.NewClusterID == done.ClusterID || done.NewClusterID == "" {
		t.Fatalf("recovery %+v, %v", done, err)
	}
	return done
}

// leftBehind asserts that err tells what to do with the folder of n.
func leftBehind(t *testing.T, n *node, err error) {
	t.Helper()
	if !errors.Is(err, ErrRecovered) || !errors.Is(err, ErrOtherCluster) || !strings.Contains(err.Error(), "empty the folder "+n.cfg.Dir) {
		t.Errorf("%s, which was left behind: %v", n.cfg.NodeID, err)
	}
}

// Planners that were given up come back with what they had: they can neither lead
// the recovered one nor go on among themselves, and join it with empty folders.
func TestRecoveredClusterIsFenced(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	nodes := y.voters(3, nil)
	propose(t, nodes[0], "before")
	for _, n := range nodes {
		y.sees(n, "before")
	}
	done := recoverAlone(t, nodes)
	one, two, three := nodes[0], nodes[1], nodes[2]
	one.mustStart("")
	y.ready(one)
	propose(t, one, "after")
	if one.ClusterID() != done.NewClusterID {
		t.Errorf("cluster %s after a recovery as %s", one.ClusterID(), done.NewClusterID)
	}
	for _, n := range []*node{two, three} {
		leftBehind(t, n, n.start(""))
	}
	if err := os.RemoveAll(two.cfg.Dir); err != nil {
		t.Fatal(err)
	}
	two.mustStart("")
	y.ready(two)
	y.members(one, "n1+ n2+")
	y.sees(two, "before")
	y.sees(two, "after")
	propose(t, two, "later")
	// Who joined since knows of the recovery too.
	one.stop()
	leftBehind(t, three, three.start(""))
	two.stop()
	two.mustStart("")
	one.mustStart("")
	y.ready(one, two)
	y.sees(two, "later")
}

// The planners that were given up have found a majority before the recovered one
// comes: it starts all the same, and they stop.
func TestRecoveredClusterEndsTheOld(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	nodes := y.voters(3, nil)
	propose(t, nodes[0], "before")
	y.sees(nodes[0], "before")
	recoverAlone(t, nodes)
	old := nodes[1:]
	for _, n := range old {
		n.mustStart("")
	}
	y.ready(old...)
	nodes[0].mustStart("")
	y.ready(nodes[0])
	if n := nodes[0].Status().Founders; n != 3 {
		t.Errorf("it says that there were %d planners before", n)
	}
	propose(t, nodes[0], "after")
	for _, n := range old {
		select {
		case <-n.Faulted():
			leftBehind(t, n, n.Fault())
		case <-time.After(waitTime):
			t.Fatalf("%s goes on", n.cfg.NodeID)
		}
	}
}

// Several that are recovered with the same voters find one another.
func TestRecoverSeveral(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	nodes := y.voters(3, nil)
	propose(t, nodes[0], "w1")
	var voters []Member
	for _, n := range nodes[:2] {
		y.sees(n, "w1")
		voters = append(voters, Member{ID: n.cfg.NodeID, Addr: n.addr, Voter: true})
	}
	for _, n := range nodes {
		n.stop()
	}
	ids := map[string]bool{}
	for _, n := range []*node{nodes[0], nodes[1], nodes[0]} { // one of them twice
		plan, err := Recover(RecoverConfig{Dir: n.cfg.Dir, Voters: voters, DryRun: true})
		if err != nil {
			t.Fatal(err)
		}
		done, err := Recover(RecoverConfig{Dir: n.cfg.Dir, Voters: voters})
		if err != nil || done.NewClusterID != plan.NewClusterID {
			t.Fatalf("%+v after a plan of %s, %v", done, plan.NewClusterID, err)
		}
		ids[done.NewClusterID] = true
	}
	if len(ids) != 1 {
		t.Errorf("clusters %v", ids)
	}
	after, err := Recover(RecoverConfig{Dir: nodes[0].cfg.Dir, Voters: voters, DryRun: true})
	if err != nil || after.Core.Last == 0 || after.Core.Last != after.Core.Snapshot {
		t.Errorf("a look right after a recovery: %+v, %v", after.Core, err)
	}
	for _, n := range nodes[:2] {
		n.mustStart("")
	}
	y.ready(nodes[:2]...)
	y.members(nodes[0], "n1+ n2+")
	y.sees(nodes[1], "w1")
	propose(t, nodes[1], "w2")
	leftBehind(t, nodes[2], nodes[2].start(""))
}

func TestRecoverRefusesBadVoters(t *testing.T) {
	c := func(addr string) *RecoverConfig {
		return &RecoverConfig{Voters: []Member{{ID: "n1", Addr: addr}, {ID: "n2", Addr: "10.0.0.2:8092"}}}
	}
	for _, addr := range []string{"", "garbage", "10.0.0.1", ":8092", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:70000", "10.0.0.1:x", "::1:8092"} {
		if got, err := c(addr).voters("n1", nil); !errors.Is(err, ErrRefused) {
			t.Errorf("%q: %v, %v", addr, got, err)
		}
	}
	if _, err := c("[::1]:8092").voters("n1", nil); err != nil {
		t.Error(err)
	}
	twice := &RecoverConfig{Voters: []Member{{ID: "n1", Addr: "a:1"}, {ID: "n1", Addr: "b:1"}}}
	if _, err := twice.voters("n1", nil); !errors.Is(err, ErrRefused) {
		t.Errorf("a voter named twice: %v", err)
	}
}

// A folder whose recovery was cut short may hold groups of two clusters.
func TestInterruptedRecovery(t *testing.T) {
	dir := t.TempDir()
	if err := writeNameplate(dir, nameplate{Format: format, ClusterID: "c", NodeID: "n1", Recovering: true}); err != nil {
		t.Fatal(err)
	}
	if d, err := openDirectory(dir, "n1", ""); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "recover` again") {
		t.Errorf("%v, %v", d, err)
	}
}

func TestRememberIsBounded(t *testing.T) {
	var list []recovered
	for i := range 3 * maxRecovered {
		list = remember(list, recovered{newClusterID(), time.Unix(int64(i), 0)})
	}
	if len(list) != maxRecovered || !list[len(list)-1].At.Equal(time.Unix(3*maxRecovered-1, 0)) {
		t.Errorf("%d remembered, the last of %v", len(list), list[len(list)-1].At)
	}
	if again := remember(list, list...); !cmp.Equal(again, list) {
		t.Error("doubled")
	}
}

// A planner whose log has lost its end does not come back as if nothing were; a
// recovery goes on with what is left when it is told to.
func TestDamagedLogIsRefused(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	nodes := y.voters(3, nil)
	propose(t, nodes[0], "w1")
	for _, n := range nodes {
		y.sees(n, "w1")
	}
	for _, n := range nodes {
		n.stop()
	}
	n := nodes[0]
	found, err := filepath.Glob(filepath.Join(n.cfg.Dir, "core", "wal", "*.wal"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	b, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	end := len(bytes.TrimRight(b, "\x00"))
	clear(b[end-60 : end])
	if err := os.WriteFile(found[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	refused := func(err error) {
		t.Helper()
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), filepath.Join(n.cfg.Dir, "core")) {
			t.Errorf("a damaged log: %v", err)
		}
	}
	refused(n.start(""))
	_, err = Recover(RecoverConfig{Dir: n.cfg.Dir, DryRun: true})
	refused(err)
	_, err = Recover(RecoverConfig{Dir: n.cfg.Dir})
	refused(err)
	refused(n.start(""))
	plan, err := Recover(RecoverConfig{Dir: n.cfg.Dir, DryRun: true, AcceptLoss: true})
	if err != nil || plan.Core.Last == 0 {
		t.Fatalf("%+v, %v", plan, err)
	}
	if _, err := Recover(RecoverConfig{Dir: n.cfg.Dir, AcceptLoss: true}); err != nil {
		t.Fatal(err)
	}
	n.mustStart("")
	y.ready(n)
	propose(t, n, "w2")
}
