package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/planners"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/raftstore/nemesis/history"
)

// cluster is three planners as processes, and this process as two members that
// have no vote: clients of it.
type cluster struct {
	*planners.Cluster
	members []*planners.Member
	random  *rand.Rand
	seed    uint64

	log      history.Log
	acked    atomic.Uint64
	terms    map[uint64]string // who led
	leaders  sync.WaitGroup
	watching context.CancelFunc
}

// simulated says that there is time for the long form (make sim).
func simulated() bool { return os.Getenv("YARDMASTER_SIM") != "" }

// seeded is the run's seed: the one of YARDMASTER_SEED, or one by chance.
func seeded(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64N(1 << 32)
	if told, err := strconv.ParseUint(os.Getenv("YARDMASTER_SEED"), 10, 64); err == nil {
		seed = told
	}
	t.Logf("YARDMASTER_SEED=%d", seed)
	return seed
}

// startCluster starts one; edit changes its nodes before.
func startCluster(t *testing.T, edit func(*planners.Cluster)) *cluster {
	t.Helper()
	all, err := planners.New(binary, t.TempDir(), 3)
	if err != nil {
		t.Fatal(err)
	}
	if edit != nil {
		edit(all)
	}
	return start(t, all)
}

// start runs the planners and enters as their clients.
func start(t *testing.T, all *planners.Cluster) *cluster {
	t.Helper()
	c := &cluster{Cluster: all, seed: seeded(t), terms: map[uint64]string{}}
	c.random = rand.New(rand.NewPCG(c.seed, 0))
	t.Cleanup(c.Stop)
	if err := c.Start(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		m, err := c.Join(t.Context(), fmt.Sprintf("client-%d", i))
		if err != nil {
			t.Fatal(err)
		}
		c.members = append(c.members, m)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c.watching = cancel
	c.leaders.Go(func() { c.watchLeaders(ctx, t) })
	t.Cleanup(func() { c.leave(t) })
	return c
}

func (c *cluster) leave(t *testing.T) {
	c.watching()
	c.leaders.Wait()
	for _, m := range c.members {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		if err := m.Leave(ctx); err != nil {
			t.Logf("%s leaves: %v", m.NodeID(), err)
		}
		cancel()
	}
}

// watchLeaders asks everybody again and again who leads. An answer is not of one
// moment, but of a node that says twice in a row that it leads, it is so in the
// term that it says both times.
func (c *cluster) watchLeaders(ctx context.Context, t *testing.T) {
	before := map[string]uint64{}
	for ctx.Err() == nil {
		now := map[string]uint64{}
		for _, m := range c.members[0].ClusterStatus(ctx).Members {
			if term := m.Node.Core.Term; m.Answered && m.Node.Core.State == "leader" {
				now[m.ID+m.Node.Incarnation] = term
				if before[m.ID+m.Node.Incarnation] != term {
					continue
				}
				if first := cmp.Or(c.terms[term], m.ID); first != m.ID {
					t.Errorf("in term %d both %s and %s lead", term, first, m.ID)
				}
				c.terms[term] = m.ID
			}
		}
		before = now
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// leader is the planner that leads, as far as the members know.
func (c *cluster) leader(t *testing.T) *planners.Node {
	t.Helper()
	var n *planners.Node
	eventually(t, "a planner leads", func() bool {
		id, _ := c.members[0].Leader()
		n, _ = c.Find(id)
		return n != nil && n.Running()
	})
	return n
}

const (
	keysAtOnce = 6
	opsPerKey  = 60
)

// use has clients read, write and swap registers until stop is called, which
// waits for them. They note what they are told.
func (c *cluster) use(t *testing.T) (stop func()) {
	var over atomic.Bool
	var clients sync.WaitGroup
	var steps [keysAtOnce]atomic.Uint64
	for i := range 6 {
		random := rand.New(rand.NewPCG(c.seed, uint64(1+i)))
		m := c.members[i%len(c.members)]
		clients.Go(func() {
			versions := map[string]uint64{}
			for n := 0; !over.Load(); n++ {
				k := random.IntN(keysAtOnce)
				key := fmt.Sprintf("key-%d-%d", k, steps[k].Add(1)/opsPerKey)
				c.step(t, m, i, key, fmt.Sprintf("%d.%d", i, n), versions, random)
				time.Sleep(time.Duration(5+random.IntN(20)) * time.Millisecond)
			}
		})
	}
	return func() { over.Store(true); clients.Wait() }
}

// step is one operation of a client.
func (c *cluster) step(t *testing.T, m *planners.Member, client int, key, value string, versions map[string]uint64, random *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
	defer cancel()
	op := history.RegisterOp{Kind: history.RegisterKind(random.IntN(3)), Value: value}
	if op.Kind == history.Read {
		c.read(ctx, m, client, key)
		return
	}
	cmd := planner.SetRegister{Key: key, Value: []byte(value)}
	if op.Kind == history.Swap {
		op.Want = versions[key]
		cmd.IfVersion = &op.Want
	}
	call := c.log.Begin(client)
	res, err := m.Propose(ctx, cmd)
	if err != nil && !errors.Is(err, raftstore.ErrAmbiguous) {
		return // nothing was proposed
	}
	got := history.RegisterAnswer{Unknown: err != nil, Version: res.Version, Conflict: err == nil && res.Code == planner.Conflict}
	call.Register(key, op, got)
	if err == nil {
		if res.Err() != nil && !got.Conflict {
			t.Errorf("%v: %v", op, res.Err())
		}
		versions[key] = res.Version
		c.acked.Add(1)
	}
}

func (c *cluster) read(ctx context.Context, m *planners.Member, client int, keys ...string) bool {
	call := c.log.Begin(client)
	if _, err := m.Read(ctx, raftstore.Linearizable()); err != nil {
		return false
	}
	for _, key := range keys {
		r, ok := m.State().Register(key)
		call.Register(key, history.RegisterOp{}, history.RegisterAnswer{Exists: ok, Value: string(r.Value), Version: r.Version})
	}
	return true
}

// works waits until something is acknowledged that was asked from now on.
func (c *cluster) works(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		try, done := context.WithTimeout(ctx, 10*time.Second)
		_, err := c.members[1].Propose(try, planner.SetRegister{Key: "works", Value: []byte("x")})
		done()
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("nothing can be written for a minute: %v", err)
		}
	}
}

// verdict judges: everything that was acknowledged is there, what clients were
// told is linearizable, and all planners have the same state.
func (c *cluster) verdict(t *testing.T) {
	t.Helper()
	if err := c.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if !c.read(ctx, c.members[1], 100, c.log.Registers()...) {
		t.Error("nothing can be read in the end")
	}
	if err := c.log.Check(20 * time.Second); err != nil {
		if errors.Is(err, history.ErrIllegal) {
			t.Error(err)
		} else {
			t.Log(err)
		}
	}
	c.compareDigests(t)
	c.watching() // what it saw is counted
	c.leaders.Wait()
	stats := c.log.Stats()
	t.Logf("%d keys, %d operations, %d of unknown outcome, %d terms with a leader", stats.Objects, stats.Operations, stats.Unknown, len(c.terms))
	if c.acked.Load() == 0 {
		t.Error("nothing was acknowledged; the test proved nothing")
	}
}

// sampleEvery is how many entries lie between two samples of the state's digest.
const sampleEvery = 1024

// compareDigests compares the members' states, by samples that they all take of
// one entry: it is written until there is one.
func (c *cluster) compareDigests(t *testing.T) {
	t.Helper()
	m := c.members[1]
	target := (m.Status().Core.Applied/sampleEvery + 1) * sampleEvery
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var writers sync.WaitGroup
	for i := range 16 {
		writers.Go(func() {
			key := fmt.Sprint("sample-", i)
			for m.Status().Core.Applied < target+1 && ctx.Err() == nil {
				_, _ = m.Propose(ctx, planner.SetRegister{Key: key, Value: []byte("x")}) // tried again
			}
		})
	}
	writers.Wait()
	defer func() {
		if t.Failed() {
			c.tell(t)
		}
	}()
	eventually(t, "all members have a sample of one entry", func() bool { return c.sampled(t) > 0 })
}

// sampled is of how many entries beyond the first sample all members have one,
// which must be equal.
func (c *cluster) sampled(t *testing.T) (common int) {
	t.Helper()
	digests, times := map[uint64]string{}, map[uint64]int{}
	members := c.members[1].ClusterStatus(t.Context()).Members
	for _, m := range members {
		for _, s := range m.Node.Core.Samples {
			if first := cmp.Or(digests[s.Index], s.Digest); first != s.Digest {
				t.Errorf("entry %d: %s has digest %s, another %s", s.Index, m.ID, s.Digest, first)
			}
			digests[s.Index] = s.Digest
			times[s.Index]++
		}
	}
	for _, n := range times {
		if n == len(members) {
			common++
		}
	}
	return common
}

// gauges are some of a node's metrics.
func gauges(ctx context.Context, n *planners.Node, names ...string) map[string]float64 {
	out := map[string]float64{}
	_, text, err := n.Get(ctx, "/metrics")
	if err != nil {
		return out
	}
	for _, name := range names {
		if m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(text); m != nil {
			if v, err := strconv.ParseFloat(m[1], 64); err == nil {
				out[name] = v
			}
		}
	}
	return out
}

// most keeps the largest of each.
func most(all, now map[string]float64) {
	for name, v := range now {
		all[name] = max(all[name], v)
	}
}

// cycles is how often planners are killed.
func cycles() int {
	if simulated() {
		return 200
	}
	return 10
}

// TestPlannersKilled kills planners again and again, one, two or all, by chance
// the leader, while clients write. Nothing that was acknowledged may be lost.
func TestPlannersKilled(t *testing.T) {
	c := startCluster(t, nil)
	stop := c.use(t)
	count := map[string]int{}
	peak := map[string]float64{}
	for range cycles() {
		c.pause(400)
		victims := c.victims(t, count)
		var all sync.WaitGroup
		for _, n := range victims {
			all.Go(n.Kill)
		}
		all.Wait()
		c.pause(300)
		for _, n := range victims {
			c.pause(50)
			if err := n.Start(context.WithoutCancel(t.Context())); err != nil {
				t.Fatal(err)
			}
		}
		if c.random.IntN(4) > 0 { // else the next strikes while they come up
			c.works(t)
		}
		for _, n := range c.Nodes {
			most(peak, gauges(t.Context(), n, "go_goroutines", "process_resident_memory_bytes"))
		}
		if t.Failed() {
			break
		}
	}
	c.works(t)
	stop()
	c.verdict(t)
	t.Logf("killed %v, at most %v", count, peak)
	if peak["go_goroutines"] > 2000 || peak["process_resident_memory_bytes"] > 1<<30 {
		t.Errorf("a planner had %v", peak)
	}
}

// pause lasts up to so many milliseconds.
func (c *cluster) pause(most int) {
	time.Sleep(time.Duration(c.random.IntN(most*1000)) * time.Microsecond)
}

// victims are who is to be killed.
func (c *cluster) victims(t *testing.T, count map[string]int) []*planners.Node {
	t.Helper()
	list := []*planners.Node{c.Nodes[0], c.Nodes[1], c.Nodes[2]}
	c.random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	what, victims := "one", list[:1]
	switch n := c.random.IntN(10); {
	case n < 4:
		if id, _ := c.members[0].Leader(); id != "" {
			if leader, err := c.Find(id); err == nil {
				what, victims = "leader", []*planners.Node{leader}
			}
		}
	case n < 7:
	case n < 8:
		what, victims = "two", list[:2]
	default:
		what, victims = "all", list
	}
	count[what]++
	return victims
}
