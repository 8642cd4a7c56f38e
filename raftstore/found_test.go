package raftstore

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"
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
		ln := n.listen("127.0.0.1:0")
		n.addr = ln.Addr().String()
		if err := ln.Close(); err != nil {
			t.Fatal(err)
		}
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
	self := founder{"n2", n.addr}
	three := []founder{{"n1", "x"}, self, {"n3", "z"}}
	if err := n.agree("c1", three); err != nil {
		t.Fatal(err)
	}
	for name, founding := range map[string]struct {
		cluster  string
		founders []founder
	}{
		"another list":     {"c1", []founder{self, {"n3", "z"}, {"n4", "w"}}},
		"another name":     {"c2", three},
		"too few":          {"c1", three[:2]},
		"without itself":   {"c1", []founder{{"n1", "x"}, {"n3", "z"}, {"n4", "w"}}},
		"at another place": {"c1", []founder{{"n1", "x"}, {"n2", "elsewhere"}, {"n3", "z"}}},
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
