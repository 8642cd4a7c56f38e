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
	nodes   map[string]string       // real addresses by name
	names   map[string]string       // names by real address
	fronts  map[string]net.Listener // where Anyone reaches a node
	faults  map[Link]Fault          // no healthy ones
	changed chan struct{}           // closed at each change of faults
	pipes   map[*pipe]struct{}      // connections, those too that have not reached the node yet
	numbers map[Link]uint64         // connections so far
}

// New is a healthy network without nodes.
func New(seed uint64) *Net {
	n := &Net{
		seed: seed, nodes: map[string]string{}, names: map[string]string{}, fronts: map[string]net.Listener{},
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
// long as ctx lets it. A connection that it gave is the network's: whatever is
// done to the network afterwards happens to it.
func (n *Net) Dialer(from string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		n.mu.Lock()
		to, ours := n.names[addr]
		n.mu.Unlock()
		if !ours {
			return d.DialContext(ctx, network, addr)
		}
		c, err := n.dial(ctx, Link{from, to})
		if err != nil {
			return nil, &net.OpError{Op: "dial", Net: network, Err: err}
		}
		return c, nil
	}
}

func (n *Net) dial(ctx context.Context, link Link) (net.Conn, error) {
	if err := n.passable(ctx, link); err != nil {
		return nil, err
	}
	ours, theirs, err := pair(ctx)
	if err != nil {
		return nil, err
	}
	n.carry(link, theirs)
	return ours, nil
}

// Front is the address at which To is reached by whoever does not dial by
// Dialer. The faults are those between Anyone and To. The network learns of a
// connection only once the system hands it over, so that what is done in the
// moment after dialling may miss it.
func (n *Net) Front(to string) (addr string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, known := n.nodes[to]; !known {
		return "", fmt.Errorf("%w: %q", ErrUnknownNode, to)
	}
	if l := n.fronts[to]; l != nil {
		return l.Addr().String(), nil
	}
	if n.ctx.Err() != nil {
		return "", ErrClosed
	}
	l, err := loopback(n.ctx)
	if err != nil {
		return "", err
	}
	n.fronts[to] = l
	n.tasks.Go(func() { n.serve(Link{Anyone, to}, l) })
	return l.Addr().String(), nil
}

func (n *Net) serve(link Link, l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		n.carry(link, c)
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

// Conns counts the connections that are open or being made through the network.
func (n *Net) Conns() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.pipes)
}

// Close resets all connections and waits until nothing runs any more.
func (n *Net) Close() {
	n.mu.Lock()
	n.cancel()
	for _, l := range n.fronts {
		_ = l.Close()
	}
	n.mu.Unlock()
	n.reset(func(Link) bool { return true })
	n.tasks.Wait()
}
