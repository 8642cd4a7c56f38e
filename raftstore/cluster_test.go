package raftstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/raftstore/identity"
	"github.com/yardmaster/yardmaster/raftstore/transport"
	"github.com/yardmaster/yardmaster/raftstore/transport/faultnet"
)

// waitTime is how long a test waits for what must happen.
const waitTime = 90 * time.Second

// testLog shows the nodes' logs when the environment asks for them.
func testLog(id string) *slog.Logger {
	if os.Getenv("YARDMASTER_TEST_LOG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo})).With("on", id)
}

// yard is a cluster of a test: nodes with real ports, one token.
type yard struct {
	t     *testing.T
	token string // file
	dirs  string
	nodes map[string]*node
	net   *faultnet.Net // between the nodes, where a test breaks it; else nil
}

// node is one of them, running or not.
type node struct {
	*Store
	yard *yard
	cfg  Config
	addr string // its own, once started
}

func newYard(t *testing.T) *yard {
	t.Helper()
	y := &yard{t: t, token: filepath.Join(t.TempDir(), "token"), dirs: t.TempDir(), nodes: map[string]*node{}}
	if err := os.WriteFile(y.token, []byte(identity.NewToken()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, n := range y.nodes {
			n.stop()
		}
		if y.net != nil {
			y.net.Close()
		}
	})
	return y
}

// node makes a node that is not started.
func (y *yard) node(id string, edit func(*Config)) *node {
	n := &node{yard: y, cfg: Config{
		Dir: filepath.Join(y.dirs, id), NodeID: id, Heartbeat: slower * 400 * time.Millisecond, Lease: slower * 350 * time.Millisecond, WriteDeadline: 10 * time.Second,
		pace:    pace{hello: 250 * time.Millisecond, answer: 2 * time.Second, lately: 3 * time.Second, twin: 400 * time.Millisecond},
		Version: "test", Logger: testLog(id),
	}}
	if edit != nil {
		edit(&n.cfg)
	}
	y.nodes[id] = n
	return n
}

// anywhere is where a node listens that has no address yet.
const anywhere = "127.0.0.1:0"

// reserve gives the node an address before it starts.
func (n *node) reserve() {
	n.yard.t.Helper()
	ln := n.listen(anywhere)
	n.addr = ln.Addr().String()
	if err := ln.Close(); err != nil {
		n.yard.t.Fatal(err)
	}
}

// listen opens the node's port.
func (n *node) listen(where string) net.Listener {
	n.yard.t.Helper()
	open := func() (net.Listener, error) { return faultnet.Place(context.Background()) }
	if where != anywhere {
		open = func() (net.Listener, error) { return new(net.ListenConfig).Listen(context.Background(), "tcp", where) }
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		ln, err := open()
		if err == nil {
			return ln
		}
		if time.Now().After(end) {
			n.yard.t.Fatal(err)
		}
	}
}

// start starts the node; at is where it listens, empty for where it was.
func (n *node) start(at string) error {
	n.yard.t.Helper()
	if at == "" {
		at = n.addr
	}
	if at == "" {
		at = anywhere
	}
	ident, err := identity.Open(identity.Config{NodeID: n.cfg.NodeID, TokenFile: n.yard.token})
	if err != nil {
		n.yard.t.Fatal(err)
	}
	ln := n.listen(at)
	n.addr = ln.Addr().String()
	cfg := n.cfg
	cfg.Registry = &measure.Registry{}
	port := transport.PortConfig{Listener: ln, Identity: ident}
	if n.yard.net != nil {
		n.yard.net.Add(n.cfg.NodeID, n.addr)
		port.Dialer = n.yard.net.Dialer(n.cfg.NodeID)
	}
	cfg.Port = transport.NewPort(port)
	cfg.Advertise = n.addr
	ctx, cancel := context.WithTimeout(n.yard.t.Context(), 30*time.Second)
	defer cancel()
	n.Store, err = Open(ctx, cfg)
	if err != nil {
		n.Store = nil
		return errors.Join(err, cfg.Port.Close())
	}
	return nil
}

func (n *node) mustStart(at string) *node {
	n.yard.t.Helper()
	if err := n.start(at); err != nil {
		n.yard.t.Fatalf("%s: %v", n.cfg.NodeID, err)
	}
	return n
}

// stop closes the node, as a process that ends well does.
func (n *node) stop() {
	if n.Store == nil {
		return
	}
	n.yard.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		n.yard.t.Errorf("%s: Close: %v", n.cfg.NodeID, err)
	}
	n.close()
}

func (n *node) close() {
	if err := n.Store.cfg.Port.Close(); err != nil {
		n.yard.t.Errorf("%s: close the port: %v", n.cfg.NodeID, err)
	}
	n.Store = nil
}

// kill ends the node's life for the others at once: every connection is cut and
// nobody is told.
func (n *node) kill() {
	n.yard.t.Helper()
	if err := n.Store.cfg.Port.Close(); err != nil {
		n.yard.t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	n.faultOnce.Do(func() { n.fault = errors.New("killed"); close(n.faulted) }) // no handing over
	if err := n.Close(ctx); err != nil {
		n.yard.t.Errorf("%s: Close: %v", n.cfg.NodeID, err)
	}
	n.Store = nil
}

// voters starts planners n1, n2, … that found a cluster, and waits for them.
func (y *yard) voters(count int, edit func(*Config)) []*node {
	y.t.Helper()
	var join []string
	var list []*node
	for i := range count {
		n := y.node(fmt.Sprintf("n%d", i+1), edit)
		n.reserve() // before anybody starts
		join = append(join, n.addr)
		list = append(list, n)
	}
	for _, n := range list {
		n.cfg.BootstrapExpect = count
		if count > 1 { // alone it is told of nobody to join
			n.cfg.Join = join
		}
		n.mustStart("")
	}
	y.ready(list...)
	return list
}

func (y *yard) ready(list ...*node) {
	y.t.Helper()
	ctx, cancel := context.WithTimeout(y.t.Context(), waitTime)
	defer cancel()
	for _, n := range list {
		if err := n.WaitReady(ctx); err != nil {
			y.t.Fatalf("%s: %v", n.cfg.NodeID, err)
		}
	}
}

// leader is who leads the core group, and the others.
func (y *yard) leader(list []*node) (leads *node, others []*node) {
	y.t.Helper()
	y.until("somebody leads", func() bool {
		leads, others = nil, nil
		for _, n := range list {
			if n.Store != nil && n.Leading() {
				leads = n
				continue
			}
			others = append(others, n)
		}
		return leads != nil
	})
	return leads, others
}

func (y *yard) until(what string, done func() bool) {
	y.t.Helper()
	for end := time.Now().Add(waitTime); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			y.t.Fatalf("not within %v: %s", waitTime, what)
		}
	}
}

func propose(t *testing.T, n *node, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	res, err := n.Propose(ctx, planner.RegisterWorker{Worker: worker(id, "a")})
	if err != nil || res.Err() != nil {
		t.Fatalf("%s: %+v, %v", n.cfg.NodeID, res, err)
	}
}

func idOf(worker string) fleet.WorkerID { return fleet.WorkerID(worker) }

func newRegistry() *measure.Registry { return &measure.Registry{} }

// sees waits until a node has a worker in its memory.
func (y *yard) sees(n *node, id string) {
	y.t.Helper()
	y.until(n.cfg.NodeID+" sees "+id, func() bool { return n.View().Find(idOf(id)) >= 0 })
}

func TestThreePlanners(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	nodes := y.voters(3, nil)
	leads, others := y.leader(nodes)
	for _, n := range nodes {
		if n.ClusterID() != leads.ClusterID() {
			t.Errorf("%s is of cluster %s, the leader of %s", n.cfg.NodeID, n.ClusterID(), leads.ClusterID())
		}
	}
	propose(t, others[0], "w1") // forwarded
	for _, n := range nodes {
		y.sees(n, "w1")
	}
	for _, n := range nodes {
		if v, err := n.Read(t.Context(), Linearizable()); err != nil || v.Find("w1") < 0 {
			t.Errorf("%s reads %v, %v", n.cfg.NodeID, v, err)
		}
	}
	leads.kill()
	start := time.Now()
	propose(t, others[0], "w2")
	t.Logf("first change %v after the leader was killed", time.Since(start))
	y.sees(others[1], "w2")
	leads.mustStart("")
	y.ready(leads)
	y.sees(leads, "w2")
	propose(t, leads, "w3")
	y.sees(others[0], "w3")
}
