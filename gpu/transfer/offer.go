package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
)

// offer is one leg that waits for the other at the source: a reservation
// without its prefill leg, or a prefill leg without its reservation.
type offer struct {
	node  *Node
	id    uint64
	until time.Time

	link    Link // of the reservation
	reserve *Reserve

	leg *leg
}

// leg is a prefill leg that waits.
type leg struct {
	peer   engine.Peer
	length int
	digest Digest
	ready  func(*Export, error)
}

// Export waits for the reservation of transfer id by peer, checks that it is for
// the same prompt, and returns the source's side of the transfer. The wait ends
// with ctx, or after Config.Meet. Errors are an [Error]; the destination is told
// of each.
//
// The caller must end the export: by Finish or by Abort.
func (n *Node) Export(ctx context.Context, id uint64, peer engine.Peer, prompt []int32) (*Export, error) {
	if err := ctx.Err(); err != nil {
		n.Refuse(id, ReasonCanceled)
		return nil, Failure(ReasonCanceled, err)
	}
	type result struct {
		export *Export
		err    error
	}
	met := make(chan result, 1)
	n.meet(id, &leg{
		peer: peer, length: len(prompt), digest: DigestOf(prompt),
		ready: func(e *Export, err error) { met <- result{e, err} },
	})
	select {
	case r := <-met:
		return r.export, r.err
	case <-ctx.Done():
	}
	n.Refuse(id, ReasonCanceled)
	if r := <-met; r.export != nil { // the legs met at the same moment
		r.export.Abort(ctx.Err(), func() {})
	}
	return nil, Failure(ReasonCanceled, ctx.Err())
}

// Refuse says that there will be no prefill leg for transfer id: its
// reservation, here or still to come, is answered with an abort.
func (n *Node) Refuse(id uint64, why Reason) {
	n.mu.Lock()
	o := n.offers[id]
	delete(n.offers, id)
	if n.exports[id] == nil && !n.closed {
		n.remember(id, why)
	}
	n.mu.Unlock()
	if o != nil {
		o.refuse(Failure(why, nil))
	}
}

// meet brings a prefill leg to its reservation, or lets it wait. leg.ready is
// called once, perhaps before meet returns.
func (n *Node) meet(id uint64, l *leg) {
	n.mu.Lock()
	o := n.offers[id]
	var why *Error
	switch was, known := n.gone[id]; {
	case n.closed:
		why = Failure(ReasonClosed, nil)
	case n.exports[id] != nil || o != nil && o.leg != nil:
		why = Failure(ReasonBusy, errors.New("this transfer has its prefill leg already"))
	case known && o == nil:
		why = Failure(or(was.why, ReasonBusy), errors.New("the transfer is over"))
	case o != nil:
		delete(n.offers, id)
	case len(n.offers) >= n.cfg.MaxTransfers:
		why = Failure(ReasonBusy, fmt.Errorf("%d legs wait", len(n.offers)))
	default:
		n.offers[id] = &offer{node: n, id: id, until: n.cfg.Clock.Now().Add(n.cfg.Meet), leg: l}
	}
	n.mu.Unlock()
	switch {
	case why != nil:
		l.ready(nil, why)
	case o != nil:
		n.join(o.link, o.reserve, l)
	}
}

// reserve brings a reservation to its prefill leg, or lets it wait.
func (n *Node) reserve(link Link, r *Reserve) {
	if why := n.checkReserve(r); why != nil {
		send(link, &Abort{ID: r.ID, Why: why.Why})
		n.turnAway(r.ID, why)
		return
	}
	n.mu.Lock()
	o := n.offers[r.ID]
	why := Reason("")
	switch was, known := n.gone[r.ID]; {
	case n.closed:
		why = ReasonClosed
	case n.exports[r.ID] != nil && n.exports[r.ID].link == link, o != nil && o.link == link:
		o = nil // said twice
	case n.exports[r.ID] != nil || o != nil && o.reserve != nil:
		why = ReasonBusy
	case known && o == nil:
		why = or(was.why, ReasonBusy)
	case o != nil:
		delete(n.offers, r.ID)
	case len(n.offers) >= n.cfg.MaxTransfers:
		why = ReasonBusy
	default:
		wait := min(clampLease(r.Lease), n.cfg.Meet)
		n.offers[r.ID] = &offer{node: n, id: r.ID, until: n.cfg.Clock.Now().Add(wait), link: link, reserve: r}
	}
	n.mu.Unlock()
	switch {
	case why != "":
		send(link, &Abort{ID: r.ID, Why: why})
	case o != nil && o.leg != nil:
		n.join(link, r, o.leg)
	}
}

// checkReserve verifies what can be verified without the prefill leg.
func (n *Node) checkReserve(r *Reserve) *Error {
	if _, epoch := n.Self(); r.Source != epoch {
		return Failure(ReasonEpoch, fmt.Errorf("reservation with epoch %d, this is %d", r.Source, epoch))
	}
	if r.Hash != n.shape.Hash {
		return Failure(ReasonLayout, errors.New("the destination's layout is another"))
	}
	return checkRange(n.shape, r.From, r.Prompt, r.Blocks)
}

// turnAway ends the prefill leg whose reservation was refused, and remembers.
func (n *Node) turnAway(id uint64, why *Error) {
	n.mu.Lock()
	o := n.offers[id]
	if o != nil && o.leg == nil {
		o = nil // another reservation waits properly; it is not this one's fault
	}
	if o != nil {
		delete(n.offers, id)
	}
	if n.offers[id] == nil && n.exports[id] == nil {
		n.remember(id, why.Why) // for a leg that comes later
	}
	n.mu.Unlock()
	if o != nil {
		o.leg.ready(nil, why)
	}
}

// join makes an export of two legs that have met, if they belong together.
func (n *Node) join(link Link, r *Reserve, l *leg) {
	e, why := n.match(link, r, l)
	if why != nil {
		n.mu.Lock()
		n.remember(r.ID, why.Why)
		n.mu.Unlock()
		send(link, &Abort{ID: r.ID, Why: why.Why})
		l.ready(nil, why)
		return
	}
	l.ready(e, nil)
}

func (n *Node) match(link Link, r *Reserve, l *leg) (*Export, *Error) {
	switch from := peerOf(r); {
	case from.ID != l.peer.ID || from.Epoch != l.peer.Epoch:
		return nil, Failure(ReasonEpoch, fmt.Errorf("reserved by %s of epoch %d, not %s of %d", from.ID, from.Epoch, l.peer.ID, l.peer.Epoch))
	case r.Prompt != l.length || r.Digest != l.digest:
		return nil, Failure(ReasonDigest, errors.New("the legs have different prompts"))
	}
	e := newExport(n, link, r)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, Failure(ReasonClosed, nil)
	}
	if len(n.exports) >= n.cfg.MaxTransfers {
		return nil, Failure(ReasonBusy, fmt.Errorf("%d exports", len(n.exports)))
	}
	n.exports[r.ID] = e
	return e, nil
}

// lateOffers takes the legs that have waited too long off the table. The caller
// holds mu.
func (n *Node) lateOffers(now time.Time) []*offer {
	var late []*offer
	for _, o := range values(n.offers) {
		if now.After(o.until) {
			late = append(late, o)
			delete(n.offers, o.id)
			n.remember(o.id, ReasonTimeout)
		}
	}
	return late
}

func (o *offer) expire() {
	o.refuse(Failure(ReasonTimeout, errors.New("the other leg did not come")))
}

// refuse tells whichever leg waits.
func (o *offer) refuse(why *Error) {
	if o.reserve != nil {
		send(o.link, &Abort{ID: o.id, Why: why.Why})
	}
	if o.leg != nil {
		o.leg.ready(nil, why)
	}
}

func clampLease(d time.Duration) time.Duration { return min(max(d, minLease), maxLease) }

func or(a, b Reason) Reason {
	if a != "" {
		return a
	}
	return b
}
