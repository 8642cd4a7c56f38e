package raftstore

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/raftstore/peer"
)

// roles is who is a member, "+" for voters.
func roles(n *node) string {
	var out []string
	for _, m := range membersOf(n.groups.Load().core) {
		out = append(out, role(m.ID, m.Voter))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func prefixRoles(n *node) string {
	var out []string
	for _, m := range membersOf(n.groups.Load().prefix) {
		out = append(out, role(m.ID, m.Voter))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func role(id string, voter bool) string {
	if voter {
		return id + "+"
	}
	return id
}

// members waits until a node knows these members, in both groups.
func (y *yard) members(n *node, want string) {
	y.t.Helper()
	y.until("members are "+want, func() bool { return roles(n) == want && prefixRoles(n) == want })
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// A gateway follows, proposes through the leader, leaves, comes back under
// another name, and is given up when it falls silent.
func TestGatewayComesAndGoes(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	one := y.voters(1, func(c *Config) { c.ReapAfter = 1500 * time.Millisecond })[0]
	gateway := func(id, at string) *node {
		n := y.node(id, func(c *Config) { c.Dir, c.Nonvoter, c.Join = "", true, []string{one.addr} }).mustStart(at)
		y.ready(n)
		y.members(one, id+" n1+")
		return n
	}
	g := gateway("g1", "")
	propose(t, g, "w1")
	y.sees(one, "w1")
	y.sees(g, "w1")

	frame := func(n *node, kind prefix.FrameKind, edit func(*prefix.Frame)) prefix.Outcome {
		t.Helper()
		f := prefix.Frame{Kind: kind, Worker: "w1", Epoch: 7}
		edit(&f)
		out, err := n.ProposeFrame(within(t, 30*time.Second), &f)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if out := frame(g, prefix.FrameAttach, func(*prefix.Frame) {}); out != prefix.Applied {
		t.Errorf("attach through a gateway: %v", out)
	}
	frame(g, prefix.FrameBegin, func(f *prefix.Frame) { f.Repair = 1 })
	if out := frame(g, prefix.FrameEnd, func(f *prefix.Frame) { f.Repair = 1 }); out != prefix.Applied {
		t.Errorf("a repair through a gateway: %v", out)
	}
	store := func(f *prefix.Frame) {
		f.First, f.Last, f.Stores, f.Sum = 1, 1, []prefix.Hash{42}, prefix.Hash(42).Sum()
	}
	for i, n := range []*node{g, one} {
		if out, want := frame(n, prefix.FrameDelta, store), []prefix.Outcome{prefix.Applied, prefix.Old}[i]; out != want {
			t.Errorf("delta at %s: %v, want %v", n.cfg.NodeID, out, want)
		}
	}
	y.until("both hold the same", func() bool {
		return g.Prefix().Stats().Held == 1 && g.Prefix().Digest() == one.Prefix().Digest()
	})

	// Planners may be gone for as long as it takes.
	where := g.addr
	if err := g.Leave(within(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
	y.members(one, "n1+")
	g.stop()
	g = gateway("g2", where)
	g.kill()
	g = gateway("g3", where) // g2's address, while g2 counts as a member
	y.members(one, "g3 n1+")
	g.kill()
	y.members(one, "n1+")
	y.until("records are those of members", func() bool {
		list := one.State().Members()
		return len(list) == 1 && list[0].ID == "n1" && list[0].Role == planner.MemberPlanner
	})
}

// Whoever leaves while others come and go leaves all the same.
func TestGatewaysLeaveAtOnce(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	one := y.voters(1, nil)[0]
	var gateways []*node
	for _, id := range []string{"g1", "g2", "g3", "g4", "g5"} {
		g := y.node(id, func(c *Config) { c.Dir, c.Nonvoter, c.Join = "", true, []string{one.addr} }).mustStart("")
		gateways = append(gateways, g)
	}
	y.ready(gateways...)
	y.members(one, "g1 g2 g3 g4 g5 n1+")
	ctx := within(t, 20*time.Second)
	left := make(chan error, len(gateways))
	for _, g := range gateways {
		go func() { left <- g.Leave(ctx) }()
	}
	for range gateways {
		if err := <-left; err != nil {
			t.Error(err)
		}
	}
	y.members(one, "n1+")
}

// A node that is joined by name later gets a vote; founders that are too many
// join.
func TestPlannersJoin(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	nodes := y.voters(1, nil)
	for _, id := range []string{"n2", "n3"} {
		n := y.node(id, func(c *Config) { c.Join = []string{nodes[0].addr} }).mustStart("")
		y.ready(n)
		nodes = append(nodes, n)
	}
	for _, n := range nodes {
		y.members(n, "n1+ n2+ n3+")
	}
	propose(t, nodes[2], "w")
	// A gateway cannot vote, and nobody comes that does not run.
	g := y.node("g", func(c *Config) { c.Dir, c.Nonvoter, c.Join = "", true, []string{nodes[1].addr} }).mustStart("")
	y.ready(g)
	for _, m := range []Member{{ID: "g", Addr: g.addr, Voter: true}, {ID: "n9", Addr: "127.0.0.1:9", Voter: true}, {ID: "?", Addr: "x", Voter: false}} {
		if err := nodes[1].AddMember(within(t, 30*time.Second), m); !errors.Is(err, ErrRefused) {
			t.Errorf("added %+v: %v", m, err)
		}
	}
	if err := g.RemoveMember(within(t, 30*time.Second), "nobody"); !errors.Is(err, ErrUnknownMember) {
		t.Errorf("removed nobody: %v", err)
	}
	// Operators decide about a planner's vote.
	if err := g.AddMember(within(t, 30*time.Second), Member{ID: "n3", Addr: nodes[2].addr, Voter: false}); err != nil {
		t.Fatal(err)
	}
	y.members(g, "g n1+ n2+ n3")
	if err := g.AddMember(within(t, 30*time.Second), Member{ID: "n3", Addr: nodes[2].addr, Voter: true}); err != nil {
		t.Fatal(err)
	}
	y.members(g, "g n1+ n2+ n3+")
	// One of an older release that cannot read the log stays outside.
	old := y.node("old", func(c *Config) { c.Join, c.MaxLevel = []string{nodes[0].addr}, 1 }).mustStart("")
	y.until("the old one says why it waits", func() bool { return strings.Contains(old.Ready().Error(), "upgrade it first") })
	// A planner that leaves for ever leads until then, perhaps.
	leads, _ := y.leader(nodes)
	if err := leads.Leave(within(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
	y.until("it is gone", func() bool { return !isMember(g.groups.Load(), leads.cfg.NodeID) })
	if err := leads.Fault(); err != nil {
		t.Errorf("a node that leaves has a fault: %v", err)
	}
}

// All nodes restart at once, each at a new address. One old acquaintance, or one
// address to join, is enough.
func TestEverybodyMoves(t *testing.T) {
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
	nodes[0].mustStart(anywhere)
	for _, n := range nodes[1:] {
		n.cfg.Join = []string{nodes[0].addr}
		n.mustStart(anywhere)
	}
	y.ready(nodes...)
	propose(t, nodes[1], "w2")
	y.until("the configuration has the new addresses", func() bool {
		for _, l := range []changer{nodes[0].groups.Load().core, nodes[0].groups.Load().prefix} {
			for i, m := range membersOf(l) {
				if m.Addr != nodes[i].addr {
					return false
				}
			}
		}
		return true
	})
}

// Two runs of one node: the one that lives wins.
func TestSecondRunIsRefused(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	nodes := y.voters(3, nil)
	y.until("everybody has met everybody", func() bool {
		for _, n := range nodes {
			if len(n.net.book.Nodes(time.Time{})) < 2 {
				return false
			}
		}
		return true
	})
	third := nodes[2]
	copied := t.TempDir()
	if err := os.CopyFS(copied, os.DirFS(third.cfg.Dir)); err != nil {
		t.Fatal(err)
	}
	twin := &node{yard: y, cfg: third.cfg}
	twin.cfg.Dir = copied
	if err := twin.start(anywhere); !errors.Is(err, ErrIDInUse) {
		t.Fatalf("the copy of a running node started: %v", err)
	}
	fresh := &node{yard: y, cfg: third.cfg}
	fresh.cfg.Dir = t.TempDir()
	fresh.mustStart(anywhere)
	y.nodes["fresh"] = fresh
	select {
	case <-fresh.Faulted():
		if !errors.Is(fresh.Fault(), ErrIDInUse) {
			t.Errorf("fault %v", fresh.Fault())
		}
	case <-time.After(10 * time.Second):
		t.Error("an empty twin was not refused")
	}
	if err := third.Fault(); err != nil {
		t.Errorf("the twin took the running node down: %v", err)
	}
	propose(t, third, "w")
}

func TestClustersDoNotMix(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	a := y.voters(1, nil)[0]
	b := y.node("m1", nil).mustStart("")
	y.ready(b)
	if a.ClusterID() == b.ClusterID() {
		t.Fatal("two clusters of one name")
	}
	b.stop()
	b.cfg.Join = []string{a.addr}
	err := b.start("")
	for range 5 { // a stranger who is slow to answer is not known in time
		if err == nil {
			b.stop()
			err = b.start("")
		}
	}
	if !errors.Is(err, ErrOtherCluster) {
		t.Errorf("started among strangers: %v", err)
	}
	b.cfg.Join = nil
	b.mustStart("")
	y.ready(b)
	torn := y.node("m2", func(c *Config) { c.Join = []string{a.addr, b.addr} }).mustStart("")
	y.until("m2 says why it waits", func() bool {
		return strings.Contains(torn.Ready().Error(), "of 2 clusters")
	})
	// A stranger who has learnt an address gets no further than hello.
	ctx := within(t, 20*time.Second)
	client, err := a.net.pool.Client(ctx, "m1", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Propose(ctx, &peer.ProposeRequest{Group: peer.Group_GROUP_CORE}); err == nil || !strings.Contains(err.Error(), "cluster") {
		t.Errorf("a proposal to another cluster: %v", err)
	}
	if c, err := a.Store.cfg.Port.Dial(ctx, "m1", b.addr, "ym-core/1/"+a.ClusterID()); err == nil {
		t.Errorf("Raft across clusters: %v", errors.Join(err, c.Close()))
	}
}

// A planner that was removed stops, says so, and comes again with an empty
// directory; one that lost its directory comes again by itself.
func TestRemovedAndWiped(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	nodes := y.voters(3, nil)
	leads, others := y.leader(nodes)
	gone := others[0]
	removed := func(n *node) {
		t.Helper()
		select {
		case <-n.Faulted():
			if !errors.Is(n.Fault(), ErrRemoved) {
				t.Errorf("fault %v", n.Fault())
			}
		case <-time.After(20 * time.Second):
			t.Fatal("a removed node goes on")
		}
	}
	if err := leads.RemoveMember(within(t, 30*time.Second), gone.cfg.NodeID); err != nil {
		t.Fatal(err)
	}
	removed(gone)
	if _, err := gone.Propose(t.Context(), planner.DrainWorker{ID: "w", Epoch: 1}); !errors.Is(err, ErrClosed) {
		t.Errorf("a removed node proposes: %v", err)
	}
	gone.stop()
	if err := gone.start(""); err == nil {
		removed(gone)
		gone.stop()
	}
	wipe := func(n *node) {
		t.Helper()
		if err := os.RemoveAll(n.cfg.Dir); err != nil {
			t.Fatal(err)
		}
		n.mustStart("")
		y.ready(n)
		y.members(n, "n1+ n2+ n3+")
		propose(t, n, "w-"+n.cfg.NodeID)
	}
	wipe(gone)
	others[1].kill()
	wipe(others[1])
	// With two of three gone for good there is no quorum to remove anybody.
	leads, others = y.leader(nodes)
	others[0].kill()
	y.until("the leader misses it", func() bool {
		_, met, _ := leads.net.book.Find(others[0].cfg.NodeID)
		return time.Since(met) > leads.pace.lately
	})
	if err := leads.RemoveMember(within(t, 20*time.Second), others[1].cfg.NodeID); !errors.Is(err, ErrRefused) {
		t.Errorf("removed the last voter that answers: %v", err)
	}
}

func TestLeadershipIsHandedOver(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	nodes := y.voters(3, nil)
	leads, others := y.leader(nodes)
	to := others[1].cfg.NodeID
	if err := others[0].Transfer(within(t, 30*time.Second), to); err != nil {
		t.Fatal(err)
	}
	y.until("both groups are led by "+to, func() bool {
		core, _ := leads.Leader()
		pre, _ := leads.PrefixLeader()
		return core == to && pre == to && others[1].Leading()
	})
	if err := others[1].Transfer(within(t, 30*time.Second), "nobody"); !errors.Is(err, ErrUnknownMember) {
		t.Errorf("transferred to nobody: %v", err)
	}
	if err := others[1].StepDown(within(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	y.until("somebody else leads", func() bool {
		id, _ := leads.Leader()
		return id != "" && id != to
	})
	var st ClusterStatus
	y.until("the cluster is healthy", func() bool {
		st = others[0].ClusterStatus(within(t, 30*time.Second))
		return st.Healthy && st.Level == planner.MaxFeatureLevel
	})
	var ids []string
	for _, m := range st.Members {
		ids = append(ids, m.ID)
		if !m.Answered || !m.Healthy || m.Node.Core.Term == 0 || m.Node.PeerAddr != m.Addr {
			t.Errorf("member %+v", m)
		}
	}
	if st.CanLose != 1 || st.Voters != 3 || st.Level != planner.MaxFeatureLevel || !cmp.Equal(ids, []string{"n1", "n2", "n3"}) {
		t.Errorf("status %+v", st)
	}
	// A leader that is closed hands over; nobody waits for an election.
	leads, others = y.leader(nodes)
	leads.stop()
	start := time.Now()
	propose(t, others[0], "w")
	t.Logf("first change %v after the leader had closed", time.Since(start))
	y.until("the death is seen", func() bool {
		st = others[0].ClusterStatus(within(t, 30*time.Second))
		return !st.Healthy && st.CanLose == 0
	})
}

// An old binary among newer ones keeps the feature level down, and what needs it
// is refused, until it is gone.
func TestFeatureLevelWaitsForTheOldest(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	one := y.voters(1, func(c *Config) { c.MaxLevel = 1 })[0]
	y.until("level 1", func() bool { return one.FeatureLevel() == 1 })
	two := y.node("n2", func(c *Config) { c.Join = []string{one.addr} }).mustStart("")
	y.ready(two)
	set := func(n *node) error {
		res, err := n.Propose(within(t, 30*time.Second), planner.SetRegister{Key: "k", Value: []byte("v")})
		return errors.Join(err, res.Err())
	}
	if err := set(two); !errors.Is(err, planner.ErrLevel) {
		t.Errorf("a register at level 1: %v", err)
	}
	y.members(two, "n1+ n2+")
	one.stop()
	one.cfg.MaxLevel = 0
	one.mustStart("")
	y.until("the level is risen everywhere", func() bool {
		return one.FeatureLevel() == planner.MaxFeatureLevel && two.FeatureLevel() == planner.MaxFeatureLevel
	})
	if err := set(two); err != nil {
		t.Error(err)
	}
	settings := two.Autopilot()
	settings.CleanupDeadVoters = true
	if err := two.SetAutopilot(within(t, 30*time.Second), settings); err != nil {
		t.Fatal(err)
	}
	y.until("the settings are known", func() bool { return one.Autopilot() == settings })
}
