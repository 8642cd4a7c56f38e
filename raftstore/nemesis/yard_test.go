package nemesis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/raftstore/identity"
	"github.com/yardmaster/yardmaster/raftstore/transport"
	"github.com/yardmaster/yardmaster/raftstore/transport/faultnet"
)

// yard is the cluster of a run. Its nodes come and go by one goroutine, the
// nemesis; others find those that run.
type yard struct {
	t     *testing.T
	seed  uint64
	dir   string
	ident string // file of the token
	net   *faultnet.Net
	log   *slog.Logger

	mu    sync.Mutex
	nodes map[string]*node
	count int // nodes made, for names and directories
}

// node is a planner or a gateway, running or not.
type node struct {
	yard  *yard
	id    string
	dir   string // none is a gateway
	addr  string
	cfg   raftstore.Config
	disk  *disk
	port  *transport.Port
	store atomic.Pointer[raftstore.Store] // nil while it does not run
}

func newYard(t *testing.T, seed uint64) *yard {
	t.Helper()
	y := &yard{t: t, seed: seed, dir: t.TempDir(), nodes: map[string]*node{}, net: faultnet.New(seed), log: slog.New(slog.DiscardHandler)}
	y.ident = filepath.Join(y.dir, "token")
	if err := os.WriteFile(y.ident, []byte(identity.NewToken()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if name := os.Getenv("YARDMASTER_TEST_LOG"); name != "" {
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		y.log = slog.New(slog.NewTextHandler(f, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return y
}

func (y *yard) close(ctx context.Context) {
	y.net.Heal()
	for _, n := range y.all() {
		n.kill(ctx)
	}
	y.net.Close()
}

// planner makes a planner that is not started. It is known from then on.
func (y *yard) planner(id string) *node {
	n := y.node(id)
	n.dir = filepath.Join(y.dir, fmt.Sprintf("%s-%d", id, y.count))
	n.cfg.Dir = n.dir
	n.cfg.Tuning = raftstore.Tuning{
		SnapshotEvery: 500 * time.Millisecond, SnapshotEntries: 200, TrailingLogs: trailing, SampleEvery: 32, WrapLog: n.disk.wrap,
	}
	return n
}

// heartbeat is above the default: seven nodes in one process, on a machine that has
// other things to do, do not always get to answer within 300 ms.
const heartbeat = 500 * time.Millisecond

// writeDeadline is when a disk counts as hung. The machine's own may be slow while
// other tests run.
const writeDeadline = 3 * time.Second

// trailing is how many entries stay behind a snapshot: few, so that whoever was
// away needs one.
const trailing = 200

// gateway makes a gateway under a name that nobody had.
func (y *yard) gateway() *node {
	n := y.node(fmt.Sprintf("gw-%d", y.count))
	n.cfg.Nonvoter = true
	n.cfg.Tuning = raftstore.Tuning{SampleEvery: 32}
	return n
}

func (y *yard) node(id string) *node {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.count++
	n := &node{yard: y, id: id, disk: newDisk()}
	n.cfg = raftstore.Config{
		NodeID: id, Heartbeat: heartbeat, ReapAfter: 5 * time.Second, Version: "test",
		WriteDeadline: writeDeadline,
		Prefix:        prefix.Options{Budget: 64 << 20}, Logger: y.log.With("on", id),
	}
	y.nodes[id] = n
	return n
}

// forget says that a node is not part of the cluster any more.
func (y *yard) forget(n *node) {
	y.mu.Lock()
	defer y.mu.Unlock()
	delete(y.nodes, n.id)
}

// all are the nodes, by id, running or not.
func (y *yard) all() []*node {
	y.mu.Lock()
	defer y.mu.Unlock()
	var out []*node
	for _, n := range y.nodes {
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b *node) int { return strings.Compare(a.id, b.id) })
	return out
}

func only(list []*node, keep func(*node) bool) (out []*node) {
	for _, n := range list {
		if keep(n) {
			out = append(out, n)
		}
	}
	return out
}

func (n *node) voter() bool   { return n.dir != "" }
func (n *node) running() bool { return n.store.Load() != nil }

func (y *yard) planners() []*node { return only(y.all(), (*node).voter) }
func (y *yard) gateways() []*node {
	return only(y.all(), func(n *node) bool { return !n.voter() })
}

// any is a store that runs, by chance; nil when none does.
func (y *yard) any(rng *rand.Rand) *raftstore.Store {
	list := only(y.all(), (*node).running)
	if len(list) == 0 {
		return nil
	}
	return list[rng.IntN(len(list))].store.Load()
}

// leader is the planner that leads group core, nil when none does.
func (y *yard) leader() *node {
	for _, n := range y.planners() {
		if s := n.store.Load(); s != nil && s.Leading() {
			return n
		}
	}
	return nil
}

func names(list []*node) (out []string) {
	for _, n := range list {
		out = append(out, n.id)
	}
	return out
}

// listen opens a port, the same as before.
func (n *node) listen(ctx context.Context) (net.Listener, error) {
	at := n.addr
	if at == "" {
		return faultnet.Place(ctx)
	}
	var lc net.ListenConfig
	for tries := 0; ; tries++ {
		ln, err := lc.Listen(ctx, "tcp", at)
		if err == nil || tries == 200 {
			return ln, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// start starts the node. ctx bounds the opening.
func (n *node) start(ctx context.Context) error {
	if n.running() {
		return nil
	}
	ident, err := identity.Open(identity.Config{NodeID: n.id, TokenFile: n.yard.ident})
	if err != nil {
		return err
	}
	ln, err := n.listen(ctx)
	if err != nil {
		return err
	}
	n.addr = ln.Addr().String()
	n.yard.net.Add(n.id, n.addr)
	cfg := n.cfg
	n.port = transport.NewPort(transport.PortConfig{Listener: ln, Identity: ident, Dialer: n.yard.net.Dialer(n.id), Logger: cfg.Logger})
	cfg.Port, cfg.Advertise, cfg.Registry = n.port, n.addr, &measure.Registry{}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := raftstore.Open(ctx, cfg)
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", n.id, err), n.port.Close())
	}
	n.store.Store(s)
	return nil
}

// patience bounds what has to happen in the end.
const patience = 90 * time.Second

// kill ends the node without a word to others, as far as a process can do that
// to a part of itself: first its port is gone, then it finds out.
func (n *node) kill(ctx context.Context) {
	s := n.store.Swap(nil)
	if s == nil {
		return
	}
	n.disk.set(trouble{})
	if err := n.port.Close(); err != nil && !errors.Is(err, io.EOF) {
		n.yard.t.Errorf("%s: close the port: %v", n.id, err)
	}
	n.end(ctx, s)
}

// stop ends the node as it is meant to end.
func (n *node) stop(ctx context.Context) {
	s := n.store.Swap(nil)
	if s == nil {
		return
	}
	n.end(ctx, s)
	if err := n.port.Close(); err != nil {
		n.yard.t.Errorf("%s: close the port: %v", n.id, err)
	}
}

// end waits for the end of a node, also when the run is over.
func (n *node) end(ctx context.Context, s *raftstore.Store) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := s.Close(ctx); err != nil && s.Fault() == nil {
		n.yard.t.Errorf("%s: close: %v", n.id, err)
	}
}

// found starts the planners that found the cluster, and gateways.
func (y *yard) found(ctx context.Context, planners, gateways int) {
	y.t.Helper()
	var join []string
	var list []*node
	for i := range planners {
		n := y.planner(fmt.Sprintf("p%d", i+1))
		ln, err := n.listen(ctx) // addresses have to be known before anybody starts
		if err != nil {
			y.t.Fatal(err)
		}
		n.addr = ln.Addr().String()
		_ = ln.Close()
		join = append(join, n.addr)
		list = append(list, n)
	}
	for _, n := range list {
		n.cfg.Join, n.cfg.BootstrapExpect = join, planners
	}
	for range gateways {
		n := y.gateway()
		n.cfg.Join = join
		list = append(list, n)
	}
	for _, n := range list {
		if err := n.start(ctx); err != nil {
			y.t.Fatal(err)
		}
	}
	y.ready(ctx, list)
}

func (y *yard) ready(ctx context.Context, list []*node) {
	y.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, n := range list {
		if err := n.store.Load().WaitReady(ctx); err != nil {
			y.t.Fatalf("%s: %v", n.id, err)
		}
	}
}

// addresses are where planners are that run.
func (y *yard) addresses() (out []string) {
	for _, n := range y.planners() {
		if n.addr != "" {
			out = append(out, n.addr)
		}
	}
	return out
}

// until waits for something, and reports whether it came.
func until(ctx context.Context, limit time.Duration, done func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for !done() {
		if !pause(ctx, 10*time.Millisecond) {
			return false
		}
	}
	return true
}

// pause reports whether it was not cut short.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
