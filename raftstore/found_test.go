package raftstore

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/raftstore/group"
	"github.com/yardmaster/yardmaster/raftstore/peer"
)

// Four new nodes that expect three: three found the cluster and one joins it,
// whichever of them sees the others first.
func TestOneFounderTooMany(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	var join []string
	var nodes []*node
	for _, id := range []string{"d", "b", "c", "a"} {
		n := y.node(id, func(c *Config) { c.BootstrapExpect = 3 })
		n.reserve()
		join, nodes = append(join, n.addr), append(nodes, n)
	}
	for i, n := range nodes {
		n.cfg.Join = []string{join[(i+1)%4], join[(i+2)%4]} // nobody is told of all
		n.mustStart("")
	}
	y.ready(nodes...)
	for _, n := range nodes {
		if n.ClusterID() != nodes[0].ClusterID() {
			t.Fatalf("%s is of cluster %s, %s of %s", n.cfg.NodeID, n.ClusterID(), nodes[0].cfg.NodeID, nodes[0].ClusterID())
		}
		y.members(n, "a+ b+ c+ d+")
	}
}

func TestFoundersMustAgree(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	n := y.node("n2", func(c *Config) { c.BootstrapExpect, c.Join = 3, []string{"127.0.0.1:1"} }).mustStart("")
	self := group.Server{ID: "n2", Addr: n.addr}
	three := []group.Server{{ID: "n1", Addr: "x"}, self, {ID: "n3", Addr: "z"}}
	if err := n.agree("c1", three); err != nil {
		t.Fatal(err)
	}
	for name, founding := range map[string]struct {
		cluster  string
		founders []group.Server
	}{
		"another list":     {"c1", []group.Server{self, {ID: "n3", Addr: "z"}, {ID: "n4", Addr: "w"}}},
		"another name":     {"c2", three},
		"too few":          {"c1", three[:2]},
		"without itself":   {"c1", []group.Server{{ID: "n1", Addr: "x"}, {ID: "n3", Addr: "z"}, {ID: "n4", Addr: "w"}}},
		"at another place": {"c1", []group.Server{{ID: "n1", Addr: "x"}, {ID: "n2", Addr: "elsewhere"}, {ID: "n3", Addr: "z"}}},
	} {
		if err := n.agree(founding.cluster, founding.founders); err == nil {
			t.Errorf("agreed to %s", name)
		}
	}
	if err := n.agree("c1", three); err != nil {
		t.Errorf("the same again: %v", err)
	}
	n.home.mu.Lock()
	n.home.promise.until = time.Now()
	n.home.mu.Unlock()
	if err := n.agree("c2", three); err != nil {
		t.Errorf("after the promise is over: %v", err)
	}
	y.until("it says what it waits for", func() bool {
		err := n.Ready()
		return errors.Is(err, ErrNotReady) && strings.Contains(err.Error(), "1 of 3")
	})
}

// A founder that crashed between its groups goes on where it was.
func TestFoundingIsFinishedAfterACrash(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	nodes := y.voters(3, nil)
	last := nodes[2]
	y.until("n3 has noted that it is a member", func() bool { return last.home.joined.Load() })
	last.kill()
	id, err := readNameplate(last.cfg.Dir + "/meta.json")
	if err != nil || !id.Joined {
		t.Fatalf("%+v, %v", id, err)
	}
	for _, group := range []string{"core", "prefix"} {
		if err := os.RemoveAll(last.cfg.Dir + "/" + group); err != nil {
			t.Fatal(err)
		}
	}
	// A member that lost its logs is not the voter it was.
	if err := last.start(""); !errors.Is(err, ErrDamaged) {
		t.Fatalf("started without its logs: %v", err)
	}
	// As if only meta.json had come to be.
	id.Joined = false
	if err := writeNameplate(last.cfg.Dir, id); err != nil {
		t.Fatal(err)
	}
	last.mustStart("")
	y.ready(last)
	propose(t, last, "w")
	y.members(last, "n1+ n2+ n3+")
}

// A planner that is told to join, and knows nobody but itself, founds nothing.
func TestJoiningOneselfFoundsNothing(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	n := y.node("n1", nil)
	n.reserve()
	n.cfg.Join = []string{n.addr}
	n.mustStart("")
	y.until("it says what it waits for", func() bool {
		err := n.Ready()
		return err != nil && strings.Contains(err.Error(), "--join names only this planner")
	})
	if n.ClusterID() != "" {
		t.Errorf("it founded %s", n.ClusterID())
	}
	if _, cluster, err := Peek(n.cfg.Dir); cluster != "" || err != nil {
		t.Errorf("its folder is of %q, %v", cluster, err)
	}
}

// A node of which only a cluster of other planners answers says so, until one of
// its own is heard again; silence changes nothing.
func TestStranding(t *testing.T) {
	s := &Store{cfg: Config{NodeID: "g"}}
	s.id.Store(&nameplate{ClusterID: "ours"})
	hear := func(answers ...answer) bool {
		s.home.strand(s.strangers(answers))
		_, why := s.Stranded()
		return why != nil
	}
	from := func(id, cluster string) answer {
		return answer{resp: &peer.HelloResponse{Node: &peer.Node{Id: id, ClusterId: cluster}}}
	}
	foreign, silent := answer{err: fmt.Errorf("p1: %w", ErrOtherCluster)}, answer{err: errors.New("no route")}
	for i, round := range []struct {
		answers []answer
		want    bool
	}{
		{[]answer{silent, silent}, false},
		{[]answer{from("g", "ours"), silent}, false}, // itself does not count
		{[]answer{foreign, from("p0", "ours")}, false},
		{[]answer{foreign, from("g", "ours")}, true},
		{[]answer{silent, from("p2", "")}, true},
		{[]answer{from("p0", "ours")}, false},
	} {
		if got := hear(round.answers...); got != round.want {
			t.Errorf("round %d: stranded %v", i, got)
		}
	}
}

// Who starts a gateway while no planner is there is told why it does not serve.
func TestGatewayWithoutPlannersSaysSo(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	g := y.node("gateway", func(c *Config) { c.Dir, c.Nonvoter, c.Join = "", true, []string{"127.0.0.1:1"} }).mustStart("")
	y.until("the gateway says what it waits for", func() bool {
		err := g.Ready()
		return errors.Is(err, ErrNotReady) && strings.Contains(err.Error(), "waiting for a planner that answers") &&
			strings.Contains(err.Error(), "127.0.0.1:1")
	})
}
