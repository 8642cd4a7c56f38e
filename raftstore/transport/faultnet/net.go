package faultnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
)

var (
	// ErrClosed means that the network was closed.
	ErrClosed = errors.New("fault network is closed")
	// ErrUnknownNode means that a node was not added.
	ErrUnknownNode = errors.New("unknown node")
)

// Net is the network between some nodes. It is safe for concurrent use.
type Net struct {
	seed   uint64
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu      sync.Mutex
	nodes   map[string]string  // real addresses by name
	names   map[string]string  // names by real address
	doors   map[Link]*door     // where From reaches To
	faults  map[Link]Fault     // no healthy ones
	changed chan struct{}      // closed at each change of faults
	pipes   map[*pipe]struct{} // open connections
	numbers map[Link]uint64    // connections so far
}

// door is a proxy's listener.
type door struct {
	link     Link
	listener net.Listener
}

// New is a healthy network without nodes.
func New(seed uint64) *Net {
	n := &Net{
		seed: seed, nodes: map[string]string{}, names: map[string]string{}, doors: map[Link]*door{},
		faults: map[Link]Fault{}, changed: make(chan struct{}), pipes: map[*pipe]struct{}{}, numbers: map[Link]uint64{},
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n
}

// Add names the node that listens at addr. Adding it again moves it; the
// connections that it has stay.
func (n *Net) Add(node, addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.names, n.nodes[node])
	n.nodes[node] = addr
	n.names[addr] = node
}

// Dialer is how node from dials: addresses of nodes lead through the network,
// all others past it. While packets would not get through, dialling waits, as
// long as ctx lets it.
func (n *Net) Dialer(from string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		n.mu.Lock()
		to, ours := n.names[addr]
		n.mu.Unlock()
		if !ours {
			return d.DialContext(ctx, network, addr)
		}
		if err := n.passable(ctx, Link{from, to}); err != nil {
			return nil, &net.OpError{Op: "dial", Net: network, Err: err}
		}
		front, err := n.door(Link{from, to})
		if err != nil {
			return nil, err
		}
		return d.DialContext(ctx, network, front)
	}
}

// Front is the address at which To is reached by whoever does not dial by
// Dialer. The faults are those between Anyone and To.
func (n *Net) Front(to string) (addr string, err error) { return n.door(Link{Anyone, to}) }

func (n *Net) door(link Link) (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, known := n.nodes[link.To]; !known {
		return "", fmt.Errorf("%w: %q", ErrUnknownNode, link.To)
	}
	if d := n.doors[link]; d != nil {
		return d.listener.Addr().String(), nil
	}
	if n.ctx.Err() != nil {
		return "", ErrClosed
	}
	var lc net.ListenConfig
	l, err := lc.Listen(n.ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	d := &door{link: link, listener: l}
	n.doors[link] = d
	n.tasks.Go(func() { n.serve(d) })
	return l.Addr().String(), nil
}

func (n *Net) serve(d *door) {
	for {
		c, err := d.listener.Accept()
		if err != nil {
			return
		}
		n.tasks.Go(func() { n.carry(d.link, c) })
	}
}

// passable waits until a connection can be made over the link. It is an error
// of the system's where dialling would be refused.
func (n *Net) passable(ctx context.Context, link Link) error {
	for {
		there, back, changed := n.look(link)
		switch {
		case there.Cut:
			return syscall.ECONNREFUSED
		case !there.Blackhole && !back.Blackhole:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-n.ctx.Done():
			return ErrClosed
		}
	}
}

// look gives the faults of both directions and what is closed at the next
// change.
func (n *Net) look(link Link) (there, back Fault, changed <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.faults[link], n.faults[Link{link.To, link.From}], n.changed
}

// Set gives one direction a fault; the zero Fault heals it.
func (n *Net) Set(from, to string, f Fault) {
	n.change(func() { n.put(Link{from, to}, f) })
}

// Apply makes the network what the step says, and healthy beside.
func (n *Net) Apply(s Step) {
	n.change(func() {
		clear(n.faults)
		for link, f := range s.Faults {
			n.put(link, f)
		}
	})
}

// Partition is Apply of a partition.
func (n *Net) Partition(sides ...[]string) { n.Apply(Partition(sides...)) }

// Isolate is Apply of a partition of one node from all others that were added.
func (n *Net) Isolate(node string) {
	var rest []string
	n.mu.Lock()
	for other := range n.nodes {
		if other != node {
			rest = append(rest, other)
		}
	}
	n.mu.Unlock()
	n.Partition([]string{node}, append(rest, Anyone))
}

// OneWay is Apply of a one-way cut.
func (n *Net) OneWay(from, to string) { n.Apply(OneWay(from, to)) }

// Heal ends all faults. What was held back arrives.
func (n *Net) Heal() { n.Apply(Step{Name: "heal"}) }

// Reset resets the connections between two nodes, whoever dialled them, and
// lets new ones be made.
func (n *Net) Reset(a, b string) {
	n.reset(func(l Link) bool { return l == Link{a, b} || l == Link{b, a} })
}

func (n *Net) put(link Link, f Fault) {
	if f == (Fault{}) {
		delete(n.faults, link)
		return
	}
	n.faults[link] = f
}

func (n *Net) change(edit func()) {
	n.mu.Lock()
	edit()
	close(n.changed)
	n.changed = make(chan struct{})
	cut := map[Link]bool{}
	for link, f := range n.faults {
		cut[link] = f.Cut
	}
	n.mu.Unlock()
	n.reset(func(l Link) bool { return cut[l] })
}

func (n *Net) reset(which func(Link) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for p := range n.pipes {
		if which(p.link) {
			p.reset()
		}
	}
}

// Conns counts the connections that are open through the network.
func (n *Net) Conns() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.pipes)
}

// Close resets all connections and waits until nothing runs any more.
func (n *Net) Close() {
	n.mu.Lock()
	n.cancel()
	for _, d := range n.doors {
		_ = d.listener.Close()
	}
	n.mu.Unlock()
	n.reset(func(Link) bool { return true })
	n.tasks.Wait()
}
