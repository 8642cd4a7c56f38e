package raftstore

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/rollout"
)

func attach(t *testing.T, n *node, worker string) {
	t.Helper()
	f := prefix.Frame{Kind: prefix.FrameAttach, Worker: idOf(worker), Epoch: 1}
	if out, err := n.ProposeFrame(within(t, 30*time.Second), &f); err != nil || out != prefix.Applied {
		t.Fatalf("attach %s: %v, %v", worker, out, err)
	}
}

func (y *yard) attached(n *node, worker string) bool {
	_, ok := n.Prefix().Table().Find(idOf(worker), 1)
	return ok
}

// A saved state comes back, on all nodes, and in another cluster.
func TestSaveAndRestore(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	nodes := y.voters(3, nil)
	_, others := y.leader(nodes)
	propose(t, nodes[0], "w1")
	attach(t, nodes[1], "w1")
	var saved bytes.Buffer
	a, err := others[0].SaveSnapshot(within(t, 30*time.Second), &saved)
	if err != nil {
		t.Fatal(err)
	}
	seen, err := InspectSnapshot(bytes.NewReader(saved.Bytes()))
	if err != nil || !cmp.Equal(seen, a) || seen.ClusterID != nodes[0].ClusterID() || seen.Core.Index == 0 || seen.Core.SHA256 == "" {
		t.Errorf("inspected %+v, %v; saved %+v", seen, err, a)
	}
	propose(t, nodes[0], "w2")
	attach(t, nodes[0], "w2")
	if _, err := others[1].RestoreSnapshot(within(t, 20*time.Second), bytes.NewReader(saved.Bytes())); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		y.until(n.cfg.NodeID+" is back", func() bool {
			v := n.View()
			return v.Find("w1") >= 0 && v.Find("w2") < 0 && y.attached(n, "w1") && !y.attached(n, "w2")
		})
	}
	propose(t, others[0], "w3")
	attach(t, others[0], "w3")

	single := y.node("m1", nil).mustStart("")
	y.ready(single)
	cluster := single.ClusterID()
	if _, err := single.RestoreSnapshot(within(t, 20*time.Second), bytes.NewReader(saved.Bytes())); err != nil {
		t.Fatal(err)
	}
	y.until("another cluster has it", func() bool { return single.View().Find("w1") >= 0 && y.attached(single, "w1") })
	single.stop()
	single.mustStart("")
	y.ready(single)
	propose(t, single, "w9")
	if single.ClusterID() != cluster || single.View().Find("w1") < 0 {
		t.Errorf("after a restart: cluster %s, %+v", single.ClusterID(), single.View().Workers)
	}
	y.until("the old cluster's members are gone", func() bool {
		list := single.State().Members()
		return len(list) == 1 && list[0].ID == "m1"
	})
}

// What is not a whole archive changes nothing.
func TestDamagedArchives(t *testing.T) {
	t.Parallel()
	s := openLeading(t, testConfig(t.TempDir()))
	register(t, s, "w1")
	var saved bytes.Buffer
	if _, err := s.SaveSnapshot(t.Context(), &saved); err != nil {
		t.Fatal(err)
	}
	register(t, s, "w2")
	good := saved.Bytes()
	at := bytes.Index(good, []byte("YMCORE"))
	if at < 0 {
		t.Fatal("no core in the archive")
	}
	flipped := bytes.Clone(good)
	flipped[at+40] ^= 1
	longer := append(bytes.Clone(good[:len(good)-1024]), good...)
	newer := bytes.Replace(good, []byte(`"format": 1`), []byte(`"format": 9`), 1)
	for name, bad := range map[string][]byte{
		"empty": nil, "cut off": good[:len(good)/2], "without its sums": good[:len(good)-2048], "flipped": flipped,
		"with another behind it": longer, "newer": newer, "something else": []byte(strings.Repeat("x", 4096)),
	} {
		if _, err := InspectSnapshot(bytes.NewReader(bad)); !errors.Is(err, ErrBadArchive) {
			t.Errorf("inspected one that is %s: %v", name, err)
		}
		if _, err := s.RestoreSnapshot(t.Context(), bytes.NewReader(bad)); !errors.Is(err, ErrBadArchive) {
			t.Errorf("restored one that is %s: %v", name, err)
		}
	}
	if s.View().Find("w2") < 0 {
		t.Error("a refused archive changed the state")
	}
	broken := errors.New("broken pipe")
	if _, err := s.SaveSnapshot(t.Context(), brokenWriter{broken}); !errors.Is(err, broken) {
		t.Errorf("saved into a broken pipe: %v", err)
	}
	if _, err := s.RestoreSnapshot(t.Context(), bytes.NewReader(good)); err != nil || s.View().Find("w2") >= 0 || s.View().Find("w1") < 0 {
		t.Errorf("the good one: %v, %+v", err, s.View().Workers)
	}
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

func FuzzInspectSnapshot(f *testing.F) {
	f.Add([]byte{})
	a := Archive{Format: archiveFormat, ClusterID: "c", Core: ArchivePart{Bytes: 3}, Prefix: ArchivePart{Bytes: 2}}
	var whole bytes.Buffer
	if err := a.write(&whole, strings.NewReader("abc"), strings.NewReader("de"), nil); err != nil {
		f.Fatal(err)
	}
	f.Add(bytes.Clone(whole.Bytes()))
	whole.Reset()
	a.Format, a.Policies = archiveFormatPolicies, []ArchivePolicy{{rollout.DigestOf([]byte("wasm")), 4}}
	give := func(rollout.Digest) ([]byte, error) { return []byte("wasm"), nil }
	if err := a.write(&whole, strings.NewReader("abc"), strings.NewReader("de"), give); err != nil {
		f.Fatal(err)
	}
	f.Add(whole.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		var core, pre bytes.Buffer
		kept := map[rollout.Digest]int64{}
		a, err := readArchive(bytes.NewReader(b), &core, &pre, func(d rollout.Digest, data []byte) error {
			kept[d] = int64(len(data))
			return nil
		})
		if err != nil {
			return
		}
		if int64(core.Len()) != a.Core.Bytes || int64(pre.Len()) != a.Prefix.Bytes {
			t.Errorf("parts of %d and %d bytes, told %+v", core.Len(), pre.Len(), a)
		}
		for _, p := range a.Policies {
			if kept[p.Digest] != p.Bytes {
				t.Errorf("%d bytes of %v, told %d", kept[p.Digest], p.Digest, p.Bytes)
			}
		}
	})
}

// When a majority is gone for good, one directory that is left becomes the
// cluster; a dry run changes nothing.
func TestRecover(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	nodes := y.voters(3, nil)
	propose(t, nodes[0], "w1")
	attach(t, nodes[0], "w1")
	last := nodes[2]
	y.until("n3 has it", func() bool { return last.View().Find("w1") >= 0 && y.attached(last, "w1") })
	cluster := last.ClusterID()
	if _, err := Recover(RecoverConfig{Dir: last.cfg.Dir}); !errors.Is(err, ErrInUse) {
		t.Errorf("recovered under a running node: %v", err)
	}
	for _, n := range nodes {
		n.stop()
	}
	for _, n := range nodes[:2] {
		if err := os.RemoveAll(n.cfg.Dir); err != nil {
			t.Fatal(err)
		}
	}
	plan, err := Recover(RecoverConfig{Dir: last.cfg.Dir, DryRun: true})
	if err != nil || plan.Done || len(plan.Core.Members) != 3 || len(plan.Voters) != 1 || plan.Voters[0].ID != "n3" || plan.Core.Last == 0 {
		t.Fatalf("plan %+v, %v", plan, err)
	}
	if again, err := Recover(RecoverConfig{Dir: last.cfg.Dir, DryRun: true}); err != nil || !cmp.Equal(again, plan) {
		t.Errorf("a dry run changed something: %+v, %v", again, err)
	}
	if _, err := Recover(RecoverConfig{Dir: last.cfg.Dir, Voters: []Member{{ID: "n1", Addr: "x"}}}); !errors.Is(err, ErrRefused) {
		t.Errorf("recovered for others: %v", err)
	}
	if done, err := Recover(RecoverConfig{Dir: last.cfg.Dir}); err != nil || !done.Done {
		t.Fatalf("recovery %+v, %v", done, err)
	}
	last.cfg.Join = nil
	last.mustStart("")
	y.ready(last)
	y.members(last, "n3+")
	propose(t, last, "w2")
	if last.ClusterID() == cluster || last.View().Find("w1") < 0 || !y.attached(last, "w1") {
		t.Errorf("after the recovery: %+v", last.View().Workers)
	}
	nodes[0].cfg.Join, nodes[0].cfg.BootstrapExpect = []string{last.addr}, 0
	nodes[0].mustStart("")
	y.ready(nodes[0])
	y.members(last, "n1+ n3+")
	if _, err := Recover(RecoverConfig{Dir: t.TempDir()}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("recovered nothing: %v", err)
	}
}

// A directory of a release that knew one planner only becomes one of a cluster.
func TestDirectoryOfOnePlannerGrows(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	n := y.node("planner-0", nil)
	s := openLeading(t, Config{Dir: n.cfg.Dir, NodeID: "planner-0", Registry: newRegistry(), Heartbeat: 50 * time.Millisecond, Lease: 25 * time.Millisecond})
	register(t, s, "w1")
	closeStore(t, s)
	if err := os.RemoveAll(n.cfg.Dir + "/prefix"); err != nil {
		t.Fatal(err)
	}
	meta := n.cfg.Dir + "/meta.json"
	b, err := os.ReadFile(meta)
	if err != nil {
		t.Fatal(err)
	}
	old, err := readNameplate(meta)
	if err != nil {
		t.Fatal(err)
	}
	old.Format, old.Founders, old.Joined = 1, nil, false
	if err := writeNameplate(n.cfg.Dir, old); err != nil {
		t.Fatal(err, string(b))
	}
	n.mustStart("")
	y.ready(n)
	attach(t, n, "w1")
	y.until("it stands with its real address", func() bool {
		_, members := n.groups.Load().core.Members()
		return len(members) == 1 && members[0].Addr == n.addr
	})
	two := y.node("n2", func(c *Config) { c.Join = []string{n.addr} }).mustStart("")
	y.ready(two)
	if two.View().Find("w1") < 0 || !y.attached(two, "w1") {
		t.Error("the newcomer lacks what the old planner knew")
	}
}

var (
	_ io.Writer = brokenWriter{}
	_ State     = (*planner.Machine)(nil)
)

func TestASecondRestoreIsRefused(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	n := y.voters(1, nil)[0]
	var saved bytes.Buffer
	if _, err := n.SaveSnapshot(within(t, 10*time.Second), &saved); err != nil {
		t.Fatal(err)
	}
	slow, feed := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := n.RestoreSnapshot(within(t, 30*time.Second), slow)
		done <- err
	}()
	if _, err := feed.Write(saved.Bytes()[:512]); err != nil {
		t.Fatal(err)
	}
	if _, err := n.RestoreSnapshot(within(t, 10*time.Second), bytes.NewReader(saved.Bytes())); !errors.Is(err, ErrRefused) {
		t.Errorf("beside another: %v", err)
	}
	if _, err := feed.Write(saved.Bytes()[512:]); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(feed.Close(), <-done); err != nil {
		t.Error(err)
	}
}
