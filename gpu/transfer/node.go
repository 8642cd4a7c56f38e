package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
)

// Config is what a node needs. Zero fields take the stated default.
type Config struct {
	Transport string // its name in metrics
	Memory    Memory
	ID        fleet.WorkerID // this worker
	// Own is the epoch under which the worker is registered. It may change when
	// the worker registers anew.
	Own      *engine.OwnEpoch
	Clock    clock.Clock       // default: the machine's
	Registry *measure.Registry // default: one nobody reads
	// Lease is how long a transfer outlives the peer's silence; default 5 s.
	Lease time.Duration
	// Meet is how long a leg waits for the other; default 5 s.
	Meet time.Duration
	// Life is the longest a transfer may take, prefill and its queue included;
	// default 2 min.
	Life time.Duration
	// MaxTransfers bounds imports, exports and waiting legs, each; default 1024.
	MaxTransfers int
	// Observe, when set, hears of the end of each transfer. It must not block.
	Observe func(Timing)
}

// Validate reports every fault of the configuration at once.
func (c *Config) Validate() error {
	var faults []error
	fault := func(bad bool, text string) {
		if bad {
			faults = append(faults, errors.New(text))
		}
	}
	fault(c.Memory == nil, "transfer: no memory")
	fault(c.ID == "" || c.Own == nil, "transfer: no identity")
	fault(c.Lease < 0 || c.Lease > maxLease, fmt.Sprintf("transfer: lease %v is not between 0 and %v", c.Lease, maxLease))
	fault(c.Meet < 0, "transfer: negative meeting time")
	fault(c.Life < 0, "transfer: negative life")
	fault(c.MaxTransfers < 0, "transfer: negative bound on transfers")
	if c.Memory != nil {
		s := c.Memory.Shape()
		fault(s.Layers <= 0 || s.Blocks <= 0 || s.BlockTokens <= 0 || s.PageBytes <= 0 || s.Hidden <= 0, "transfer: a dimension of the memory is not positive")
		fault(s.PageBytes > maxPage, fmt.Sprintf("transfer: pages of %d bytes; the longest are %d", s.PageBytes, maxPage))
		fault(4*s.Hidden > MaxBody/2, "transfer: the hidden state does not fit a message")
	}
	return errors.Join(faults...)
}

const (
	minLease = 50 * time.Millisecond
	maxLease = time.Minute
	maxPage  = 16 << 20
	// maxBlocks bounds the blocks of one reservation so that it fits a body.
	maxBlocks = (MaxBody - 1024) / 8
	// maxGone bounds what is remembered of transfers that are over.
	maxGone = 4096
)

func (c *Config) withDefaults() {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&c.Lease, 5*time.Second)
	set(&c.Meet, 5*time.Second)
	set(&c.Life, 2*time.Minute)
	if c.MaxTransfers == 0 {
		c.MaxTransfers = 1024
	}
	if c.Clock == nil {
		c.Clock = clock.Real{}
	}
	if c.Registry == nil {
		c.Registry = new(measure.Registry)
	}
	c.Lease = max(c.Lease, minLease)
}

// Timing is when one side of a transfer passed its stages; a stage that it did
// not pass, or that only the other side sees, is the zero time.
type Timing struct {
	ID         uint64
	Export     bool      // this side was the source
	Reserved   time.Time // destination: reservation sent; source: legs met
	FirstByte  time.Time // first frame landed, or sent
	PrefillEnd time.Time // source only: Finish was called
	End        time.Time // committed (at the source: acknowledged) or failed
	Bytes      int64     // payload
	Frames     int
	Why        Reason // empty when committed
}

// Node is one worker's end of all its transfers. Its transport calls Handle,
// Land and Down with what arrives, and Tick as time passes.
type Node struct {
	cfg   Config
	shape Shape
	dial  Dialer
	count counters

	mu      sync.Mutex
	closed  bool
	imports map[uint64]*Import
	exports map[uint64]*Export
	offers  map[uint64]*offer   // one leg is here
	gone    map[uint64]farewell // over, so that what comes late is known
	order   []uint64            // of gone, oldest first
}

// farewell is what is remembered of a transfer that is over.
type farewell struct {
	why   Reason // told to a leg that comes late; empty: the transfer ran
	until time.Time
}

// New makes a node on top of dial, which may be nil for a worker that only
// exports. It starts no goroutine; its transport must call Tick at least every
// quarter of a lease.
func New(cfg Config, dial Dialer) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.withDefaults()
	return &Node{
		cfg: cfg, shape: cfg.Memory.Shape(), dial: dial, count: newCounters(cfg.Registry, cfg.Transport),
		imports: map[uint64]*Import{}, exports: map[uint64]*Export{}, offers: map[uint64]*offer{}, gone: map[uint64]farewell{},
	}, nil
}

// Lease is how long a transfer of this node outlives the peer's silence.
func (n *Node) Lease() time.Duration { return n.cfg.Lease }

// Shape is the form of the node's memory.
func (n *Node) Shape() Shape { return n.shape }

// Is reports whether meant is this worker's epoch; see [engine.OwnEpoch].
func (n *Node) Is(ctx context.Context, meant fleet.Epoch) bool { return n.cfg.Own.Is(ctx, meant) }

// Self is this worker as registered now.
func (n *Node) Self() (fleet.WorkerID, fleet.Epoch) { return n.cfg.ID, n.cfg.Own.Epoch() }

// Live is the number of transfers and waiting legs. It returns to zero.
func (n *Node) Live() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.imports) + len(n.exports) + len(n.offers)
}

// Busy reports whether a transfer, or a leg waiting for one, uses link.
func (n *Node) Busy(link Link) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, i := range n.imports {
		if i.link == link {
			return true
		}
	}
	for _, e := range n.exports {
		if e.link == link {
			return true
		}
	}
	for _, o := range n.offers {
		if o.link == link {
			return true
		}
	}
	return false
}

// Handle takes a control message that came over link.
func (n *Node) Handle(link Link, m Message) {
	switch m := m.(type) {
	case *Reserve:
		n.reserve(link, m)
	case *Finish:
		if i := n.importOn(link, m.ID); i != nil {
			i.finish(m)
		}
	case *Abort:
		n.aborted(link, m)
	case *Commit:
		if e := n.exportOn(link, m.ID); e != nil {
			e.commit()
		}
	case *Renew:
		now := n.cfg.Clock.Now()
		if i := n.importOn(link, m.ID); i != nil {
			i.renew(now)
		}
		if e := n.exportOn(link, m.ID); e != nil {
			e.renew(now)
		}
	}
}

// importOn finds the import with that id, if it lives on link: no other peer
// may speak for it.
func (n *Node) importOn(link Link, id uint64) *Import {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i := n.imports[id]; i != nil && i.link == link {
		return i
	}
	return nil
}

func (n *Node) exportOn(link Link, id uint64) *Export {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e := n.exports[id]; e != nil && e.link == link {
		return e
	}
	return nil
}

// aborted ends what the peer gave up.
func (n *Node) aborted(link Link, m *Abort) {
	why := Failure(m.Why.fromPeer(), fmt.Errorf("the peer gave up: %s", m.Why))
	if i := n.importOn(link, m.ID); i != nil {
		i.end(why, false)
	}
	if e := n.exportOn(link, m.ID); e != nil {
		e.fail(why, false)
	}
	n.declined(link, m.ID, why)
}

// declined ends the leg that waits for what the peer will not send, and, when it
// has yet to come, remembers.
func (n *Node) declined(link Link, id uint64, why *Error) {
	n.mu.Lock()
	o := n.offers[id]
	switch {
	case o != nil && (o.link == link || o.leg != nil && o.leg.peer.ID == link.Peer().ID):
		delete(n.offers, id)
	case o != nil:
		n.mu.Unlock()
		return // somebody else's
	}
	if _, known := n.gone[id]; !known {
		n.remember(id, why.Why)
	}
	n.mu.Unlock()
	if o != nil && o.leg != nil {
		o.leg.ready(nil, why)
	}
}

// Down ends everything on link, which is lost for the reason cause.
func (n *Node) Down(link Link, cause error) {
	n.mu.Lock()
	var imports []*Import
	var exports []*Export
	for _, i := range n.imports {
		if i.link == link {
			imports = append(imports, i)
		}
	}
	for _, e := range n.exports {
		if e.link == link {
			exports = append(exports, e)
		}
	}
	for id, o := range n.offers {
		if o.link == link {
			delete(n.offers, id)
			n.remember(id, ReasonConnect)
		}
	}
	n.mu.Unlock()
	why := AsError(ReasonConnect, cause)
	for _, i := range imports {
		i.end(why, false)
	}
	for _, e := range exports {
		e.fail(why, false)
	}
}

// Tick ends what has run out of time and renews what has not.
func (n *Node) Tick() {
	now := n.cfg.Clock.Now()
	n.mu.Lock()
	imports, exports := values(n.imports), values(n.exports)
	late := n.lateOffers(now)
	n.forget(now)
	n.mu.Unlock()
	for _, i := range imports {
		i.tick(now)
	}
	for _, e := range exports {
		e.tick(now)
	}
	for _, o := range late {
		o.expire()
	}
}

// values lists a table in the order of the ids, so that runs of a simulation
// are alike.
func values[T any](table map[uint64]T) []T {
	ids := make([]uint64, 0, len(table))
	for id := range table {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	out := make([]T, len(ids))
	for i, id := range ids {
		out[i] = table[id]
	}
	return out
}

// Close ends every transfer. Afterwards the node refuses new ones.
func (n *Node) Close() {
	n.mu.Lock()
	n.closed = true
	imports, exports, offers := values(n.imports), values(n.exports), values(n.offers)
	clear(n.offers)
	n.mu.Unlock()
	why := Failure(ReasonClosed, nil)
	for _, i := range imports {
		i.end(why, true)
	}
	for _, e := range exports {
		e.fail(why, true)
	}
	for _, o := range offers {
		o.refuse(why)
	}
}

// remember notes that id is over. The caller holds mu.
func (n *Node) remember(id uint64, why Reason) {
	if _, known := n.gone[id]; !known {
		if len(n.order) >= maxGone {
			delete(n.gone, n.order[0])
			n.order = n.order[1:]
		}
		n.order = append(n.order, id)
	}
	n.gone[id] = farewell{why: why, until: n.cfg.Clock.Now().Add(max(n.cfg.Lease, n.cfg.Meet))}
}

// forget drops what was remembered long enough. The caller holds mu.
func (n *Node) forget(now time.Time) {
	for len(n.order) > 0 && now.After(n.gone[n.order[0]].until) {
		delete(n.gone, n.order[0])
		n.order = n.order[1:]
	}
}

// send tells the peer, if it can still be told. A link that cannot carry the
// message is lost, and its loss tells the peer as much.
func send(link Link, m Message) {
	if link != nil {
		_ = link.Send(m)
	}
}

// peerOf reports the peer that a reservation came from.
func peerOf(r *Reserve) engine.Peer { return engine.Peer{ID: r.Dest, Epoch: r.DestEpoch} }
