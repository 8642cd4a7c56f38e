package transfer

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
)

// Destination is where an import must land.
type Destination struct {
	Prompt []int32 // the whole prompt
	From   int     // first token position wanted, a multiple of the block size
	Blocks []Ref   // reserved for positions From.. of Prompt
}

// Import is the destination's side of one transfer.
type Import struct {
	node *Node
	id   uint64
	peer engine.Peer
	link Link
	refs []Ref
	done func(hidden []float32, err error)
	over chan struct{} // closed when done has returned

	// fence is held shared by whoever writes to the pages, only while copying
	// what has already arrived, and exclusively to shut the door for good.
	fence sync.RWMutex
	open  bool

	mu      sync.Mutex
	state   State
	claimed bits // pages a frame has come for: [layer][index]
	landed  int  // pages whose bytes are in place and verified
	frames  uint32
	digest  uint64
	last    *Finish
	silent  time.Time // when the lease ends
	dead    time.Time // when its time is over, whatever happens
	timing  Timing
}

// Import begins a transfer from peer into dst. It returns at once. When the
// transfer is over done is called once, from any goroutine, also before Import
// returns: with the hidden state [Shape.Hidden] when every page is in place and
// verified, else with an [Error]. Before done is called, the pages are fenced.
//
// done must neither block nor call the import. dst is not kept, but for Blocks,
// which must not change.
func (n *Node) Import(id uint64, peer engine.Peer, dst Destination, done func(hidden []float32, err error)) *Import {
	now := n.cfg.Clock.Now()
	i := &Import{
		node: n, id: id, peer: peer, refs: dst.Blocks, done: done, over: make(chan struct{}), open: true,
		claimed: newBits(n.shape.Layers * len(dst.Blocks)), silent: now.Add(n.cfg.Lease), dead: now.Add(n.cfg.Life),
		timing: Timing{ID: id, Reserved: now},
	}
	if err := i.begin(dst); err != nil {
		i.end(err, false)
	}
	return i
}

func (i *Import) begin(dst Destination) *Error {
	n := i.node
	if err := checkRange(n.shape, dst.From, len(dst.Prompt), dst.Blocks); err != nil {
		return err
	}
	if n.dial == nil {
		return Failure(ReasonConnect, errors.New("this worker only exports"))
	}
	link, err := n.dial.Link(i.peer)
	if err != nil {
		return AsError(ReasonConnect, err)
	}
	i.link = link
	if err := n.addImport(i); err != nil {
		return err
	}
	i.mu.Lock()
	if i.state == Offered {
		i.state.to(Reserved)
	}
	i.mu.Unlock()
	link.Expect(int64(len(dst.Blocks)) * int64(n.shape.Layers) * int64(n.shape.PageBytes))
	id, epoch := n.Self()
	if err := link.Send(&Reserve{
		ID: i.id, Source: i.peer.Epoch, Dest: id, DestEpoch: epoch, Hash: n.shape.Hash, From: dst.From,
		Prompt: len(dst.Prompt), Digest: DigestOf(dst.Prompt), Lease: n.cfg.Lease, Blocks: dst.Blocks,
	}); err != nil {
		return AsError(ReasonConnect, err)
	}
	return nil
}

// checkRange verifies that blocks are what positions from.. of a prompt need,
// and that the prompt fits this side's memory, which bounds what a peer can ask
// to have remembered.
func checkRange(s Shape, from, prompt int, blocks []Ref) *Error {
	whole := (prompt + s.BlockTokens - 1) / s.BlockTokens
	want := whole - from/s.BlockTokens
	if whole > s.Blocks || from < 0 || from%s.BlockTokens != 0 || want <= 0 || len(blocks) != want || want > maxBlocks {
		return Failure(ReasonBounds, fmt.Errorf("%d blocks for positions %d to %d of %d-token blocks", len(blocks), from, prompt, s.BlockTokens))
	}
	for _, r := range blocks {
		if r.Block < 0 {
			return Failure(ReasonBounds, fmt.Errorf("block %d", r.Block))
		}
	}
	return nil
}

func (n *Node) addImport(i *Import) *Error {
	if slices.ContainsFunc(i.refs, func(r Ref) bool { return int(r.Block) >= n.shape.Blocks }) {
		return Failure(ReasonBounds, errors.New("a reserved block is not of this memory"))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return Failure(ReasonClosed, nil)
	}
	if n.imports[i.id] != nil {
		return Failure(ReasonBusy, errors.New("this transfer is already being imported"))
	}
	if len(n.imports) >= n.cfg.MaxTransfers {
		return Failure(ReasonBusy, fmt.Errorf("%d imports", len(n.imports)))
	}
	n.imports[i.id] = i
	return nil
}

// Cancel ends the import and tells the source. When it returns nothing writes to
// the destination and done has returned. It may be called at any time, also
// when the import is over.
func (i *Import) Cancel() { i.end(Failure(ReasonCanceled, nil), true) }

// Decline tells peer that transfer id is not needed, so that its prefill leg
// does not wait for a reservation.
func (n *Node) Decline(id uint64, peer engine.Peer) {
	if n.dial == nil {
		return
	}
	if link, err := n.dial.Link(peer); err == nil {
		send(link, &Abort{ID: id, Why: ReasonNotNeeded})
	}
}

// State is how far the import has come.
func (i *Import) State() State {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.state
}

// end fails the import, unless it is over; either way it returns only after done
// has.
func (i *Import) end(why *Error, notify bool) {
	i.mu.Lock()
	if !i.state.live() {
		i.mu.Unlock()
		<-i.over
		return
	}
	i.state.to(Aborting)
	i.mu.Unlock()
	i.shut()
	i.step(Fenced)
	if notify {
		send(i.link, &Abort{ID: i.id, Why: why.Why})
	}
	i.leave(why.Why)
	i.done(nil, why)
	i.step(Released)
	close(i.over)
}

// shut closes the fence: when it returns no page is written any more.
func (i *Import) shut() {
	i.fence.Lock()
	i.open = false
	i.fence.Unlock()
}

func (i *Import) step(to State) {
	i.mu.Lock()
	i.state.to(to)
	i.mu.Unlock()
}

// leave takes the import off the table and counts it.
func (i *Import) leave(why Reason) {
	n := i.node
	n.mu.Lock()
	if n.imports[i.id] == i {
		delete(n.imports, i.id)
		n.remember(i.id, "")
	}
	n.mu.Unlock()
	i.mu.Lock()
	i.timing.End, i.timing.Why = n.cfg.Clock.Now(), why
	t := i.timing
	i.mu.Unlock()
	n.count.ended(why, t.End.Sub(t.Reserved))
	if n.cfg.Observe != nil {
		n.cfg.Observe(t)
	}
}

func (i *Import) renew(now time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	// Once all was said to be sent, only what was sent can help.
	if i.last == nil {
		i.silent = now.Add(i.node.cfg.Lease)
	}
}

func (i *Import) tick(now time.Time) {
	i.mu.Lock()
	silent, dead := now.After(i.silent), now.After(i.dead)
	missing := i.last != nil
	i.mu.Unlock()
	switch {
	case dead:
		i.end(Failure(ReasonTimeout, fmt.Errorf("not over after %v", i.node.cfg.Life)), true)
	case silent && missing:
		i.end(Failure(ReasonCoverage, errors.New("frames that were sent did not come")), true)
	case silent:
		why := Failure(ReasonLease, errors.New("the source fell silent"))
		i.end(why, true)
		i.link.Close(why)
	default:
		send(i.link, &Renew{ID: i.id})
	}
}

// finish takes the source's account of what it sent.
func (i *Import) finish(m *Finish) {
	var why *Error
	i.mu.Lock()
	switch {
	case !i.state.live():
	case m.Epoch != i.peer.Epoch:
		why = Failure(ReasonEpoch, fmt.Errorf("finish of epoch %d, not %d", m.Epoch, i.peer.Epoch))
	case i.last != nil:
		why = Failure(ReasonCoverage, errors.New("finished twice"))
	case len(m.Hidden) != i.node.shape.Hidden:
		why = Failure(ReasonBounds, fmt.Errorf("hidden state of %d, not %d", len(m.Hidden), i.node.shape.Hidden))
	default:
		i.last = m
		i.silent = i.node.cfg.Clock.Now().Add(i.node.cfg.Lease)
	}
	i.mu.Unlock()
	if why != nil {
		i.end(why, true)
		return
	}
	i.settle()
}

// settle commits once the account is here and everything in it has landed.
func (i *Import) settle() {
	i.mu.Lock()
	if !i.state.live() || i.last == nil || i.frames < i.last.Frames {
		i.mu.Unlock()
		return
	}
	var why *Error
	switch {
	case i.frames > i.last.Frames || i.landed != i.node.shape.Layers*len(i.refs):
		why = Failure(ReasonCoverage, fmt.Errorf("%d of %d pages in %d of %d frames", i.landed, i.node.shape.Layers*len(i.refs), i.frames, i.last.Frames))
	case i.digest != i.last.Digest || i.timing.Bytes != int64(i.last.Bytes):
		why = Failure(ReasonChecksum, errors.New("the pages that came are not those that were sent"))
	default:
		if i.state == Reserved {
			i.state.to(Moving)
		}
		i.state.to(Verifying)
		i.state.to(Committed)
	}
	hidden := i.last.Hidden
	i.mu.Unlock()
	if why != nil {
		i.end(why, true)
		return
	}
	i.shut()
	send(i.link, &Commit{ID: i.id})
	i.leave("")
	i.done(hidden, nil)
	i.step(Released)
	close(i.over)
}
