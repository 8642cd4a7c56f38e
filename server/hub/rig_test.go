package hub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/traffic"
)

// rig is some nodes in one bubble. Each serves and links; leader says who leads.
type rig struct {
	t      *testing.T
	view   atomic.Pointer[fleet.View]
	leader atomic.Int32 // a node's number; -1 is none
	nodes  []*node
}

type node struct {
	id       string
	rig      *rig
	table    *load.Table
	registry *measure.Registry
	server   *Server
	link     *Link
	samples  atomic.Pointer[fleet.Samples]
	ln       *bufconn.Listener
	stop     func()

	down  atomic.Bool // nobody connects to it, nor it to anybody
	mu    sync.Mutex
	conns []*gate // that it dialled
}

// gate is a connection that can stand still.
type gate struct {
	net.Conn
	mu     sync.Mutex
	closed chan struct{}
	once   sync.Once
	held   chan struct{} // nil while it flows
}

func (g *gate) wait() error {
	g.mu.Lock()
	held := g.held
	g.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-g.closed:
			return net.ErrClosed
		}
	}
	return nil
}

func (g *gate) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if held := g.wait(); held != nil {
		return 0, held
	}
	return n, err
}

func (g *gate) Write(p []byte) (int, error) {
	if err := g.wait(); err != nil {
		return 0, err
	}
	return g.Conn.Write(p)
}

func (g *gate) Close() error {
	g.once.Do(func() { close(g.closed) })
	return g.Conn.Close()
}

// hold makes the connection stand still, both ways.
func (g *gate) hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = make(chan struct{})
}

func workers(n int) *fleet.View {
	list := make([]fleet.Worker, n)
	for i := range list {
		list[i] = fleet.Worker{ID: fleet.WorkerID(fmt.Sprintf("w%02d", i)), Epoch: fleet.Epoch(i + 1), Role: fleet.RoleBoth, Models: []string{"m"}}
	}
	return fleet.NewView(uint64(n), list)
}

// bubble runs f on a rig of n nodes in virtual time. Node 0 leads.
func bubble(t *testing.T, n int, f func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t}
		r.view.Store(workers(8))
		for i := range n {
			r.nodes = append(r.nodes, r.make(i))
		}
		for _, n := range r.nodes {
			n.start()
		}
		f(t, r)
		for _, n := range r.nodes {
			n.stop()
		}
		for _, n := range r.nodes {
			for i, s := range n.table.Columns(r.view.Load()).Slots {
				if s.Others() != 0 {
					t.Errorf("%s has %d requests of others on worker %d after the end", n.id, s.Others(), i)
				}
			}
		}
	})
}

func (r *rig) make(i int) *node {
	n := &node{id: fmt.Sprintf("n%d", i), rig: r, registry: &measure.Registry{}, ln: bufconn.Listen(1 << 16)}
	n.table = load.NewTable(n.registry)
	var err error
	n.server, err = NewServer(ServerConfig{
		Leading: func() bool { return int(r.leader.Load()) == i }, View: r.view.Load, Samples: n.samples.Load, Registry: n.registry,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	n.link, err = NewLink(LinkConfig{
		Gateway: n.id, Incarnation: 1, Table: n.table, View: r.view.Load, Server: n.server, Registry: n.registry,
		Traffic: func() []traffic.Totals { return traffic.Read(n.registry) },
		Leader: func() (string, string, bool) {
			l := int(r.leader.Load())
			if l < 0 {
				return "", "", false
			}
			return fmt.Sprintf("n%d", l), fmt.Sprintf("10.0.0.%d:1", l), l == i
		},
		Dial: n.dial,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	n.slots()
	return n
}

func (n *node) start() {
	ctx, cancel := context.WithCancel(n.rig.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := n.server.Serve(n.ln); err != nil {
			n.rig.t.Errorf("Serve: %v", err)
		}
	})
	wg.Go(func() { n.link.Run(ctx) })
	n.stop = sync.OnceFunc(func() {
		cancel()
		n.server.Close(context.WithoutCancel(ctx))
		wg.Wait()
	})
}

func (n *node) dial(ctx context.Context, id, _ string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, other := range n.rig.nodes {
		if other.id != id {
			continue
		}
		if other.down.Load() || n.down.Load() {
			return nil, errors.New("connection refused")
		}
		conn, err := other.ln.DialContext(ctx)
		if err != nil {
			return nil, err
		}
		g := &gate{Conn: conn, closed: make(chan struct{})}
		n.conns = append(n.conns, g)
		return g, nil
	}
	return nil, errors.New("no such node")
}

// die ends the node without a word; connections break.
func (n *node) die() {
	n.down.Store(true)
	n.stop()
}

// last is the connection that the node dialled last.
func (n *node) last() *gate {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.conns[len(n.conns)-1]
}

func (n *node) slots() []*load.Slot { return n.table.Columns(n.rig.view.Load()).Slots }

// reserve puts k requests on a worker.
func (n *node) reserve(worker, k int) (release func()) {
	var list []*load.Reservation
	for range k {
		list = append(list, n.slots()[worker].Reserve(load.Prefill, load.Work{Prompt: 100, Context: 200}))
	}
	return func() {
		for _, r := range list {
			r.Close()
		}
	}
}

func (n *node) metric(name string, labels ...string) float64 {
	for _, f := range n.registry.Snapshot() {
		if f.Desc.Name != name {
			continue
		}
		for _, s := range f.Series {
			if fmt.Sprint(s.Labels) == fmt.Sprint(labels) {
				return s.Value
			}
		}
	}
	return 0
}

// others fails unless each node of those has that many requests of others on the
// worker.
func (r *rig) others(when string, worker int, want map[int]int) {
	r.t.Helper()
	synctest.Wait()
	for i, n := range want {
		if got := r.nodes[i].slots()[worker].Others(); got != n {
			r.t.Errorf("%s: n%d sees %d requests of others, want %d", when, i, got, n)
		}
	}
}

func pass(d time.Duration) { time.Sleep(d); synctest.Wait() }
