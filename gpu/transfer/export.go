package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
)

// Export is the source's side of one transfer. Computed, Finish and Abort are
// called by one goroutine, the one that computes.
type Export struct {
	node  *Node
	link  Link
	res   *Reserve
	epoch fleet.Epoch // ours, when the legs met
	lease time.Duration
	over  chan struct{} // closed when committed or failed

	mu       sync.Mutex
	state    State
	high     []int // per layer: positions before it are announced
	next     []int // per layer: index of the first page not queued
	queued   int   // frames the link has and has not begun
	writing  int   // frames the link is reading pages for
	pinned   int   // their bytes
	frames   uint32
	digest   uint64
	hidden   []float32
	finished bool
	release  func()
	err      *Error
	silent   time.Time
	dead     time.Time
	timing   Timing
}

func newExport(n *Node, link Link, r *Reserve) *Export {
	now := n.cfg.Clock.Now()
	lease := clampLease(r.Lease) // the destination's, so that both sides' are equal
	_, epoch := n.Self()
	e := &Export{
		node: n, link: link, res: r, epoch: epoch, lease: lease, over: make(chan struct{}), state: Reserved,
		high: slices.Repeat([]int{r.From}, n.shape.Layers), next: make([]int, n.shape.Layers),
		silent: now.Add(lease), dead: now.Add(n.cfg.Life), timing: Timing{ID: r.ID, Export: true, Reserved: now},
	}
	return e
}

// From is the first token position that the destination lacks, a multiple of the
// block size.
func (e *Export) From() int { return e.res.From }

// Computed says that layer holds valid KV for positions [from, to), in blocks:
// the request's table, from position 0. Pages that are complete are sent, the
// last page when the prompt is. The pages stay as they are until release.
//
// Positions come in order and without a hole; a hole fails the transfer.
func (e *Export) Computed(layer, from, to int, blocks []int32) {
	moves, why := e.ready(layer, from, to, blocks)
	if why != nil {
		e.fail(why, true)
		return
	}
	for _, m := range moves {
		if err := e.link.Move(m); err != nil {
			e.fail(AsError(ReasonConnect, err), false)
			return
		}
	}
}

// ready cuts the newly complete pages of a layer into frames.
func (e *Export) ready(layer, from, to int, blocks []int32) ([]*Move, *Error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.state.live() || to <= e.res.From {
		return nil, nil
	}
	s := &e.node.shape
	if from > e.high[layer] || to > e.res.Prompt {
		return nil, Failure(ReasonBounds, fmt.Errorf("layer %d announced [%d, %d) after %d of %d positions", layer, from, to, e.high[layer], e.res.Prompt))
	}
	e.high[layer] = max(e.high[layer], to)
	first := e.res.From / s.BlockTokens
	end := e.high[layer]/s.BlockTokens - first
	if e.high[layer] == e.res.Prompt {
		end = len(e.res.Blocks)
	}
	if end > e.next[layer] && first+end > len(blocks) {
		return nil, Failure(ReasonBounds, fmt.Errorf("table of %d blocks for %d", len(blocks), first+end))
	}
	var moves []*Move
	most := max(1, MaxFrame/s.PageBytes)
	for e.next[layer] < end {
		at := e.next[layer]
		count := min(end-at, most)
		moves = append(moves, e.move(layer, at, blocks[first+at:first+at+count]))
		e.next[layer] += count
	}
	if len(moves) > 0 {
		e.queued += len(moves)
		e.state.to(Ready)
	}
	return moves, nil
}

// move makes the frame of pages index.. of a layer, which lie in blocks.
func (e *Export) move(layer, index int, blocks []int32) *Move {
	s := &e.node.shape
	m := &Move{export: e, Frame: Frame{
		ID: e.res.ID, Epoch: e.epoch, Layer: layer, Index: index,
		Refs: e.res.Blocks[index : index+len(blocks)], Bytes: len(blocks) * s.PageBytes,
	}}
	for at := 0; at < len(blocks); {
		n := 1
		for at+n < len(blocks) && blocks[at+n] == blocks[at]+int32(n) {
			n++
		}
		m.Pages = append(m.Pages, e.node.cfg.Memory.Run(layer, blocks[at], n))
		at += n
	}
	return m
}

// Finish says that all layers of all positions have been announced. hidden
// [Shape.Hidden], of the last position, is copied. release is called once, from
// any goroutine, as soon as no page is read any more; perhaps before Finish
// returns.
func (e *Export) Finish(hidden []float32, release func()) {
	now := e.node.cfg.Clock.Now()
	e.mu.Lock()
	e.timing.PrefillEnd = now
	e.hidden = slices.Clone(hidden)
	e.finished = true
	e.release = release
	hole := e.state.live() && slices.ContainsFunc(e.high, func(h int) bool { return h != e.res.Prompt })
	e.mu.Unlock()
	if hole {
		e.fail(Failure(ReasonCoverage, errors.New("finished before every layer was announced")), true)
		return
	}
	e.settle()
}

// Abort ends the export and tells the destination. release is called once, as
// for Finish. Aborting again, or what is over, only calls release.
func (e *Export) Abort(cause error, release func()) {
	e.mu.Lock()
	if earlier := e.release; earlier != nil {
		e.release = func() { earlier(); release() }
	} else {
		e.release = release
	}
	e.mu.Unlock()
	e.fail(Failure(ReasonCanceled, cause), true)
	e.settle()
}

// Done is closed when the transfer is over: committed, or failed. It may be over
// before the prefill is, which then serves nobody.
func (e *Export) Done() <-chan struct{} { return e.over }

// Wait returns nil once the destination has verified every page, and an [Error]
// when it will not.
func (e *Export) Wait(ctx context.Context) error {
	select {
	case <-e.over:
	case <-ctx.Done():
		return Failure(ReasonTimeout, ctx.Err())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return e.err
	}
	return nil
}

// State is how far the export has come.
func (e *Export) State() State {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state
}

// fail ends the export, unless it is over. Its pages are fenced when the link
// has let go of the frame it may be writing.
func (e *Export) fail(why *Error, notify bool) {
	e.mu.Lock()
	if !e.state.live() {
		e.mu.Unlock()
		return
	}
	e.state.to(Aborting)
	e.err = why
	e.node.count.quarantined.Add(float64(e.pinned))
	e.mu.Unlock()
	if notify {
		send(e.link, &Abort{ID: e.res.ID, Why: why.Why})
	}
	e.leave(why.Why)
	e.settle()
}

// leave takes the export off the table and wakes who waits for its end.
func (e *Export) leave(why Reason) {
	n := e.node
	n.mu.Lock()
	if n.exports[e.res.ID] == e {
		delete(n.exports, e.res.ID)
		n.remember(e.res.ID, "")
	}
	n.mu.Unlock()
	e.mu.Lock()
	e.timing.End, e.timing.Why = n.cfg.Clock.Now(), why
	t := e.timing
	e.mu.Unlock()
	if why == "" {
		n.count.exposed.Observe(t.End.Sub(t.PrefillEnd).Seconds())
	}
	if n.cfg.Observe != nil {
		n.cfg.Observe(t)
	}
	close(e.over)
}

// settle does what has become possible: sends the account of a finished export,
// releases the pages of one that no longer reads them.
func (e *Export) settle() {
	e.mu.Lock()
	var account *Finish
	var release func()
	switch {
	case e.writing > 0:
	case e.state.live():
		if !e.finished || e.queued > 0 || e.state == Verifying {
			break
		}
		e.state.to(Verifying)
		account = &Finish{
			ID: e.res.ID, Epoch: e.epoch, Frames: e.frames, Bytes: uint64(e.timing.Bytes), Digest: e.digest, Hidden: e.hidden,
		}
		release, e.release = e.release, nil
	default:
		if e.state == Aborting {
			e.state.to(Fenced)
		}
		if e.release != nil {
			e.state.to(Released)
		}
		release, e.release = e.release, nil
	}
	e.mu.Unlock()
	if account != nil {
		if err := e.link.Send(account); err != nil {
			e.fail(AsError(ReasonConnect, err), false)
		}
	}
	if release != nil {
		release()
	}
}

// commit takes the destination's word that every page is verified.
func (e *Export) commit() {
	e.mu.Lock()
	if e.state != Verifying { // too early to be true, or too late to matter
		e.mu.Unlock()
		return
	}
	e.state.to(Committed)
	e.state.to(Released)
	e.mu.Unlock()
	e.leave("")
}

func (e *Export) renew(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.silent = now.Add(e.lease)
}

func (e *Export) tick(now time.Time) {
	e.mu.Lock()
	silent, dead := now.After(e.silent), now.After(e.dead)
	e.mu.Unlock()
	switch {
	case dead:
		e.fail(Failure(ReasonTimeout, fmt.Errorf("not over after %v", e.node.cfg.Life)), true)
	case silent:
		why := Failure(ReasonLease, errors.New("the destination fell silent"))
		e.fail(why, true)
		e.link.Close(why)
	default:
		send(e.link, &Renew{ID: e.res.ID})
	}
}

// Move is the work of sending one frame. The link calls Begin, reads Pages, and
// calls Sent or Failed. A move that is never begun needs no end.
type Move struct {
	export *Export
	Frame  Frame    // CRC is the link's to fill in
	Pages  [][]byte // the payload, in order
}

// Begin pins the pages. It is false when the export is over: the pages must not
// be read.
func (m *Move) Begin() bool {
	e := m.export
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.state.live() {
		return false
	}
	e.queued--
	e.writing++
	e.pinned += m.Frame.Bytes
	if e.state == Ready {
		e.state.to(Moving)
	}
	if e.timing.FirstByte.IsZero() {
		e.timing.FirstByte = e.node.cfg.Clock.Now()
	}
	return true
}

// Sent unpins the pages: the frame, with the checksum now in it, is out of the
// pages, though perhaps not yet with the peer.
func (m *Move) Sent() {
	e := m.export
	e.mu.Lock()
	e.frames++
	e.digest += m.Frame.digest()
	e.timing.Bytes += int64(m.Frame.Bytes)
	e.timing.Frames++
	m.unpin()
	e.mu.Unlock()
	e.node.count.sent.Add(float64(m.Frame.Bytes))
	e.settle()
}

// Failed unpins the pages of a frame that was not sent whole.
func (m *Move) Failed(cause error) {
	e := m.export
	e.mu.Lock()
	m.unpin()
	e.mu.Unlock()
	e.fail(AsError(ReasonConnect, cause), false)
	e.settle()
}

// unpin lets go of the pages. The caller holds the export's mu.
func (m *Move) unpin() {
	e := m.export
	e.writing--
	e.pinned -= m.Frame.Bytes
	if !e.state.live() {
		e.node.count.quarantined.Add(-float64(m.Frame.Bytes))
	}
}
