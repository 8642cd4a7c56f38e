package raftstore

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/raftstore/blob"
)

// module is bytes that stand for a policy's, another for each seed.
func module(size int, seed uint64) []byte {
	data := make([]byte, size)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range data {
		data[i] = byte(r.Uint64())
	}
	return data
}

func versionOf(data []byte, policy string) rollout.Version {
	return rollout.Version{
		Policy: policy, Release: "1", Kind: rollout.Router, Digest: rollout.DigestOf(data), Size: int64(len(data)), Report: "{}",
	}
}

// push puts a policy's bytes and makes the version known.
func push(t *testing.T, n *node, data []byte, policy string) rollout.Digest {
	t.Helper()
	ctx := within(t, 30*time.Second)
	d, err := n.PutBlob(ctx, data)
	if err != nil {
		t.Fatalf("%s: PutBlob: %v", n.cfg.NodeID, err)
	}
	res, err := n.Propose(ctx, planner.PutPolicy{Version: versionOf(data, policy)})
	if err != nil || res.Err() != nil {
		t.Fatalf("%s: PutPolicy: %+v, %v", n.cfg.NodeID, res, err)
	}
	return d
}

// level waits until the cluster can have policies.
func (y *yard) level(list ...*node) {
	y.t.Helper()
	for _, n := range list {
		y.until(n.cfg.NodeID+" is at level 3", func() bool { return n.FeatureLevel() >= levelOfPolicies })
	}
}

// has waits until the node has the bytes by itself.
func (y *yard) has(n *node, data []byte) {
	y.t.Helper()
	d := rollout.DigestOf(data)
	y.until(n.cfg.NodeID+" has "+d.Short(), func() bool {
		got, err := n.blobs.shelf.Get(y.t.Context(), d)
		return err == nil && bytes.Equal(got, data)
	})
}

func (n *node) blobPath(d rollout.Digest) string {
	return filepath.Join(n.cfg.Dir, "blobs", d.String())
}

func gateway(c *Config) { c.Nonvoter, c.Dir = true, "" }

// A policy that is put at any node, a gateway too, comes to all, stays through
// restarts and damage, and comes to those who join later.
func TestPolicyReachesEveryNode(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	nodes := y.voters(3, nil)
	join := []string{nodes[0].addr, nodes[1].addr}
	gw := y.node("g1", func(c *Config) { gateway(c); c.Join = join }).mustStart("")
	y.ready(gw)
	y.level(append(nodes, gw)...)

	small, large := module(4000, 1), module(1<<20+17, 2)
	everywhere := func(data []byte) {
		t.Helper()
		for _, n := range append(nodes, gw) {
			y.has(n, data)
			y.knows(n, rollout.DigestOf(data))
		}
	}
	start := time.Now()
	push(t, nodes[1], small, "a")
	everywhere(small)
	t.Logf("%d bytes pushed at a planner: everywhere in %v", len(small), time.Since(start))
	start = time.Now()
	d := push(t, gw, large, "b") // the gateway keeps it in memory
	t.Logf("%d bytes pushed at a gateway in %v", len(large), time.Since(start))
	everywhere(large)
	t.Logf("everywhere in %v", time.Since(start))
	for _, n := range append(nodes, gw) {
		y.until(n.cfg.NodeID+" lacks nothing", func() bool { return len(n.MissingBlobs()) == 0 })
		if n.State().Rollout().Index() == 0 {
			t.Error("the table has no index")
		}
	}
	if info, err := os.Stat(nodes[0].blobPath(d)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info, err)
	}

	// A damaged file, and one that is gone, are fetched again at the next start.
	nodes[0].stop()
	if err := os.WriteFile(nodes[0].blobPath(d), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(nodes[0].blobPath(rollout.DigestOf(small))); err != nil {
		t.Fatal(err)
	}
	nodes[0].mustStart("")
	y.ready(nodes[0])
	y.has(nodes[0], large)
	y.has(nodes[0], small)

	late := y.node("n9", func(c *Config) { c.Join = join }).mustStart("")
	y.ready(late)
	y.has(late, large)
	second := y.node("g2", func(c *Config) { gateway(c); c.Join = join }).mustStart("")
	y.ready(second)
	got, err := second.Blob(within(t, 30*time.Second), d)
	if err != nil || !bytes.Equal(got, large) {
		t.Errorf("a new gateway: %d bytes, %v", len(got), err)
	}
	if _, err := second.Blob(within(t, 5*time.Second), rollout.DigestOf([]byte("?"))); !errors.Is(err, ErrNoBlob) || !errors.Is(err, rollout.ErrUnknown) {
		t.Errorf("a blob that nothing names: %v", err)
	}
}

// A minority that cannot be reached does not keep a policy from being put; a
// majority does, and says who.
func TestPutNeedsAQuorum(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	nodes := y.voters(3, nil)
	y.level(nodes...)
	nodes[2].kill()
	data := module(300<<10, 3)
	if _, err := nodes[0].PutBlob(within(t, 30*time.Second), data); err != nil {
		t.Fatal(err)
	}
	y.has(nodes[0], data)
	y.has(nodes[1], data)
	nodes[1].kill()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	_, err := nodes[0].PutBlob(ctx, module(1000, 4))
	if !errors.Is(err, ErrTooFewHold) || !strings.Contains(err.Error(), "n2") || !strings.Contains(err.Error(), "1 of 3") {
		t.Errorf("one of three: %v", err)
	}
	// What a quorum took is there for the third when it comes back.
	nodes[1].mustStart("")
	nodes[2].mustStart("")
	y.ready(nodes...)
	push(t, nodes[0], data, "a")
	y.has(nodes[2], data)
}

// Alone, on disk and in memory, without a port.
func TestPolicyAlone(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"", t.TempDir()} {
		cfg := testConfig(dir)
		cfg.pace = pace{hello: 50 * time.Millisecond, answer: time.Second, lately: time.Second, twin: 100 * time.Millisecond}
		s := openLeading(t, cfg)
		data := module(70_000, 5)
		if err := s.waitUntil(within(t, 30*time.Second), "no level", func() bool { return s.FeatureLevel() >= levelOfPolicies }); err != nil {
			t.Fatal(err)
		}
		changed := s.Changed()
		d, err := s.PutBlob(t.Context(), data)
		if err != nil {
			t.Fatal(err)
		}
		if res, err := s.Propose(t.Context(), planner.PutPolicy{Version: versionOf(data, "a")}); err != nil || res.Err() != nil {
			t.Fatal(res, err)
		}
		select {
		case <-changed:
		case <-time.After(waitTime):
			t.Fatal("nobody was told")
		}
		if got, err := s.Blob(t.Context(), d); err != nil || !bytes.Equal(got, data) {
			t.Error(len(got), err)
		}
		for _, bad := range [][]byte{nil, make([]byte, blob.MaxBlob+1)} {
			if _, err := s.PutBlob(t.Context(), bad); !errors.Is(err, blob.ErrSize) {
				t.Errorf("%d bytes: %v", len(bad), err)
			}
		}
		closeStore(t, s)
		if _, err := s.PutBlob(t.Context(), data); !errors.Is(err, ErrClosed) {
			t.Errorf("put after the end: %v", err)
		}
		if dir == "" {
			continue
		}
		if err := os.Remove(filepath.Join(dir, "blobs", d.String())); err != nil {
			t.Fatal(err)
		}
		s = openLeading(t, cfg)
		if _, err := s.Blob(t.Context(), d); !errors.Is(err, ErrNoBlob) || !strings.Contains(err.Error(), "push it again") {
			t.Errorf("a lost file: %v", err)
		}
		if again, err := s.PutBlob(t.Context(), data); err != nil || again != d {
			t.Error(again, err)
		}
		if _, err := s.Blob(t.Context(), d); err != nil {
			t.Error(err)
		}
	}
}

// A cluster with an old binary has no policies, and says why, until that is
// upgraded.
func TestPoliciesWaitForTheLevel(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	one := y.voters(1, func(c *Config) { c.MaxLevel = 2 })[0]
	two := y.node("n2", func(c *Config) { c.Join = []string{one.addr} }).mustStart("")
	y.ready(two)
	y.members(two, "n1+ n2+")
	y.until("level 2", func() bool { return one.FeatureLevel() == 2 && two.FeatureLevel() == 2 })
	data := module(1000, 6)
	for _, n := range []*node{one, two} {
		if _, err := n.PutBlob(t.Context(), data); !errors.Is(err, planner.ErrLevel) {
			t.Errorf("%s: %v", n.cfg.NodeID, err)
		}
		if _, err := n.Propose(within(t, 30*time.Second), planner.PutPolicy{Version: versionOf(data, "a")}); !errors.Is(err, planner.ErrLevel) {
			t.Errorf("%s: %v", n.cfg.NodeID, err)
		}
	}
	one.stop()
	one.cfg.MaxLevel = 0
	one.mustStart("")
	y.level(one, two)
	push(t, two, data, "a")
	y.has(one, data)
}
