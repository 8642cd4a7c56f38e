package fake

import (
	"container/heap"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/gpu/transfer"
)

// Network joins workers. It is for one goroutine.
type Network struct {
	// Latency is the time from one end to the other; by default 50 µs.
	Latency time.Duration
	// BytesPerSecond is the speed of each direction of each link; by default 10^9.
	BytesPerSecond float64
	// OnRead, when set, is called when pages of a move are about to be read.
	OnRead func(*transfer.Move)

	clock   *clock.Virtual
	random  *rand.Rand
	script  []Fault
	events  events
	serial  uint64
	workers map[string]*Worker // by address
}

// New makes a network whose chances come from seed and whose faults from script.
func New(seed uint64, script ...Fault) *Network {
	return &Network{
		Latency: 50 * time.Microsecond, BytesPerSecond: 1e9,
		clock: clock.NewVirtual(time.Unix(0, 0)), random: rand.New(rand.NewPCG(seed, seed)), //nolint:gosec // reproducible on purpose
		script: script, workers: map[string]*Worker{},
	}
}

// Clock is the network's time.
func (n *Network) Clock() *clock.Virtual { return n.clock }

// Worker is one process on the network.
type Worker struct {
	Node *transfer.Node

	net  *Network
	peer engine.Peer
	dead bool
	ends map[engine.Peer]*end // dialed
	all  []*end
	sent int // packets
}

// Join starts a worker at addr. The config's transport, clock and ticks are the
// network's to provide. A worker that was at addr is dead from now on.
func (n *Network) Join(addr string, cfg transfer.Config) (*Worker, error) {
	if old := n.workers[addr]; old != nil {
		n.Kill(old)
	}
	w := &Worker{net: n, ends: map[engine.Peer]*end{}}
	cfg.Transport, cfg.Clock = "fake", n.clock
	node, err := transfer.New(cfg, w)
	if err != nil {
		return nil, err
	}
	w.Node = node
	w.peer.Transfer = addr
	w.peer.ID, w.peer.Epoch = node.Self()
	n.workers[addr] = w
	n.tick(w)
	return w, nil
}

func (n *Network) tick(w *Worker) {
	n.after(w.Node.Lease()/4, w, func() {
		w.Node.Tick()
		n.tick(w)
	})
}

// Peer is the worker as the other leg is told of it.
func (w *Worker) Peer() engine.Peer { return w.peer }

// Kill ends w's process: nothing of it runs any more, and its peers' links are
// lost once they hear of it.
func (n *Network) Kill(w *Worker) {
	if w.dead {
		return
	}
	w.dead = true
	for _, e := range w.all {
		e.hangUp(errors.New("connection reset"))
	}
}

// Dead reports whether the worker was killed, by Kill or by a fault.
func (w *Worker) Dead() bool { return w.dead }

// Link implements transfer.Dialer.
func (w *Worker) Link(peer engine.Peer) (transfer.Link, error) {
	if e := w.ends[peer]; e != nil {
		return e, nil
	}
	here := &end{owner: w, peer: peer}
	w.ends[peer] = here
	w.all = append(w.all, here)
	there := w.net.workers[peer.Transfer]
	switch {
	case there == nil || there.dead:
		w.net.after(w.net.Latency, w, func() { here.lose(errors.New("connection refused")) })
	case there.peer.ID != peer.ID || there.peer.Epoch != peer.Epoch:
		w.net.after(2*w.net.Latency, w, func() {
			here.lose(transfer.Failure(transfer.ReasonEpoch, errors.New("the peer is another incarnation")))
		})
	default:
		here.other = &end{owner: there, peer: w.peer, other: here}
		there.all = append(there.all, here.other)
	}
	return here, nil
}

// Step does what is next, and reports false when nothing is to be done before
// limit.
func (n *Network) Step(limit time.Time) bool {
	if len(n.events) == 0 || n.events[0].at.After(limit) {
		return false
	}
	next := heap.Pop(&n.events).(event) //nolint:forcetypeassert // the heap holds nothing else
	n.clock.Advance(next.at.Sub(n.clock.Now()))
	if next.who == nil || !next.who.dead {
		next.do()
	}
	return true
}

// At schedules do, e.g. the test's own next move.
func (n *Network) At(d time.Duration, do func()) { n.after(d, nil, do) }

// after schedules do at who, unless who is dead by then.
func (n *Network) after(d time.Duration, who *Worker, do func()) {
	n.serial++
	heap.Push(&n.events, event{at: n.clock.Now().Add(d), serial: n.serial, who: who, do: do})
}

type event struct {
	at     time.Time
	serial uint64 // ties are settled by age
	who    *Worker
	do     func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	if !e[i].at.Equal(e[j].at) {
		return e[i].at.Before(e[j].at)
	}
	return e[i].serial < e[j].serial
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) } //nolint:forcetypeassert // only after pushes
func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}

// String names the worker for messages of tests.
func (w *Worker) String() string { return fmt.Sprintf("%s@%d", w.peer.ID, w.peer.Epoch) }
