package raftstore

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/raftstore/blob"
	"github.com/yardmaster/yardmaster/raftstore/transport/faultnet"
)

// lie makes a node give other bytes than a policy's, as one with a broken memory
// does; it ends with the function that is returned.
func (n *node) lie(data []byte) (stop func()) {
	d, other := rollout.DigestOf(data), bytes.Clone(data)
	other[len(other)/2] ^= 1
	n.blobs.lend(d, other)
	return func() { n.blobs.takeBack(d) }
}

// lose takes a policy's bytes from a node that runs.
func (n *node) lose(t *testing.T, d rollout.Digest) {
	t.Helper()
	if err := os.Remove(n.blobPath(d)); err != nil {
		t.Fatal(err)
	}
	if _, err := n.blobs.shelf.Get(t.Context(), d); !errors.Is(err, blob.ErrMissing) {
		t.Fatal(err)
	}
}

// knows waits until the node's state names the policy.
func (y *yard) knows(n *node, d rollout.Digest) {
	y.t.Helper()
	y.until(n.cfg.NodeID+" knows "+d.Short(), func() bool {
		_, ok := n.State().Rollout().Version(d)
		return ok
	})
}

// A node that lies is asked and not believed; where all lie, the node goes on
// asking and says what it lacks.
func TestLiarsAreNotBelieved(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	nodes := y.voters(3, nil)
	y.level(nodes...)
	data := module(700<<10, 11)
	d := push(t, nodes[0], data, "a")
	for _, n := range nodes {
		y.has(n, data)
		y.knows(n, d)
	}

	stop := nodes[0].lie(data)
	for range 4 { // by chance the liar is asked first
		nodes[2].lose(t, d)
		if got, err := nodes[2].Blob(within(t, 30*time.Second), d); err != nil || !bytes.Equal(got, data) {
			t.Fatal(len(got), err)
		}
	}
	both := nodes[1].lie(data)
	nodes[2].stop()
	if err := os.Truncate(nodes[2].blobPath(d), 1000); err != nil {
		t.Fatal(err)
	}
	nodes[2].mustStart("")
	y.ready(nodes[2])
	y.until("n3 knows what it lacks", func() bool { return cmp.Equal(nodes[2].MissingBlobs(), []rollout.Digest{d}) })
	y.until("a reader is told who lies", func() bool {
		_, err := nodes[2].Blob(within(t, 2*time.Second), d)
		return errors.Is(err, ErrNoBlob) && errors.Is(err, blob.ErrFalse) && strings.Contains(err.Error(), "n1")
	})
	stop()
	both()
	y.has(nodes[2], data)
	y.until("n3 lacks nothing", func() bool { return len(nodes[2].MissingBlobs()) == 0 })
}

// A node that answers nothing, and one whose connection is slow, do not hold up
// the others.
func TestHungNodeHoldsUpNobody(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.net = faultnet.New(5)
	nodes := y.voters(3, nil)
	y.level(nodes...)
	leads, others := y.leader(nodes)
	hung := others[1]
	hole := faultnet.Fault{Blackhole: true}
	for _, n := range []*node{leads, others[0]} {
		y.net.Set(n.cfg.NodeID, hung.cfg.NodeID, hole)
		y.net.Set(hung.cfg.NodeID, n.cfg.NodeID, hole)
	}
	data := module(1<<20, 12)
	start := time.Now()
	d := push(t, others[0], data, "a")
	t.Logf("1 MiB at two of three in %v", time.Since(start))
	if _, err := hung.Blob(within(t, time.Second), d); !errors.Is(err, ErrNoBlob) {
		t.Errorf("on the hung node: %v", err)
	}
	y.net.Heal()
	y.has(hung, data)
}

// A node that dies while others take a policy from it leaves nothing behind that
// passes for one; who is left goes on.
func TestPusherDiesInTheMiddle(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.net = faultnet.New(6)
	nodes := y.voters(3, nil)
	y.level(nodes...)
	for _, to := range []string{"n1", "n2"} { // 2 MiB would take 8 s
		y.net.Set("n3", to, faultnet.Fault{Rate: 256 << 10})
		y.net.Set(to, "n3", faultnet.Fault{Rate: 256 << 10})
	}
	data := module(2<<20, 13)
	var pushing sync.WaitGroup
	pushing.Go(func() {
		// Fault and close are seen by PutBlob as the end.
		if _, err := nodes[2].PutBlob(context.Background(), data); err == nil {
			t.Error("put by a node that died")
		}
	})
	store := nodes[2].Store
	y.until("it has begun", func() bool { return len(store.blobs.puts) > 0 })
	time.Sleep(500 * time.Millisecond)
	nodes[2].kill()
	pushing.Wait()
	y.net.Heal()
	for _, n := range nodes[:2] {
		if n.blobs.shelf.Has(rollout.DigestOf(data)) {
			t.Errorf("%s has what never arrived", n.cfg.NodeID)
		}
	}
	push(t, nodes[0], data, "a")
	y.has(nodes[1], data)
	nodes[2].mustStart("")
	y.ready(nodes[2])
	y.has(nodes[2], data)
}

// Who serves a joiner dies in the middle: another one serves it.
func TestServerDiesInTheMiddle(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.net = faultnet.New(7)
	nodes := y.voters(3, nil)
	y.level(nodes...)
	data := module(2<<20, 14)
	d := push(t, nodes[0], data, "a")
	for _, n := range nodes {
		y.has(n, data)
		y.knows(n, d)
	}
	nodes[2].lose(t, d)
	y.net.Set("n3", "n1", faultnet.Fault{Rate: 256 << 10})
	y.net.Set("n1", "n3", faultnet.Fault{Rate: 256 << 10})
	ctx := within(t, 60*time.Second)
	var fetching sync.WaitGroup
	fetching.Go(func() {
		_, err := nodes[2].fetchFrom(ctx, Member{ID: "n1", Addr: nodes[0].addr}, d, int64(len(data)))
		if err == nil {
			t.Error("fetched from a node that died")
		}
	})
	time.Sleep(300 * time.Millisecond)
	nodes[0].kill()
	fetching.Wait()
	y.net.Heal()
	if got, err := nodes[2].Blob(ctx, d); err != nil || !bytes.Equal(got, data) {
		t.Error(len(got), err)
	}
}

// A planner whose disk is full says so, and a quorum of others is enough.
func TestFullDiskOfOne(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	full := map[string]*atomic.Bool{"n1": {}, "n2": {}, "n3": {}}
	nodes := y.voters(3, func(c *Config) {
		mine := full[c.NodeID]
		c.Tuning.FreeForPolicies = func() (uint64, error) {
			if mine.Load() {
				return 1 << 20, nil
			}
			return 1 << 40, nil
		}
	})
	y.level(nodes...)
	full["n3"].Store(true)
	if _, err := nodes[0].PutBlob(within(t, 30*time.Second), module(10_000, 15)); err != nil {
		t.Error(err)
	}
	full["n2"].Store(true)
	_, err := nodes[0].PutBlob(within(t, 30*time.Second), module(10_000, 16))
	if !errors.Is(err, ErrTooFewHold) || strings.Count(err.Error(), "the disk has 1 MiB left") != 2 {
		t.Error(err)
	}
}

// A saved snapshot has the policies in it, and brings them to another cluster.
func TestSnapshotCarriesPolicies(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	nodes := y.voters(1, nil)
	y.level(nodes...)
	data, lost := module(600<<10, 17), module(1000, 18)
	push(t, nodes[0], data, "a")
	gone := push(t, nodes[0], lost, "b")
	nodes[0].lose(t, gone)
	var saved bytes.Buffer
	a, err := nodes[0].SaveSnapshot(within(t, 30*time.Second), &saved)
	if err != nil || a.Format != archiveFormatPolicies || len(a.Policies) != 1 || !cmp.Equal(a.Missing, []rollout.Digest{gone}) {
		t.Fatalf("%+v, %v", a, err)
	}
	seen, err := InspectSnapshot(bytes.NewReader(saved.Bytes()))
	if err != nil || !cmp.Equal(seen, a) {
		t.Errorf("inspected %+v, %v; saved %+v", seen, err, a)
	}
	for at := 0; at < saved.Len(); at += 20_003 { // a bit anywhere, a policy's among them
		bad := bytes.Clone(saved.Bytes())
		bad[at] ^= 1
		if _, err := InspectSnapshot(bytes.NewReader(bad)); err == nil {
			t.Errorf("a bit at %d of %d was not noticed", at, saved.Len())
		}
	}

	other := newYard(t)
	three := other.voters(3, nil)
	other.level(three...)
	if _, err := three[1].RestoreSnapshot(within(t, 30*time.Second), bytes.NewReader(saved.Bytes())); err != nil {
		t.Fatal(err)
	}
	for _, n := range three {
		other.has(n, data)
		other.until(n.cfg.NodeID+" misses one", func() bool { return cmp.Equal(n.MissingBlobs(), []rollout.Digest{gone}) })
	}
	// Pushing it again is enough: the version is there.
	if _, err := three[0].PutBlob(within(t, 30*time.Second), lost); err != nil {
		t.Fatal(err)
	}
	for _, n := range three {
		other.has(n, lost)
		other.until(n.cfg.NodeID+" misses nothing", func() bool { return len(n.MissingBlobs()) == 0 })
	}
}
