package transfer

import (
	"fmt"
	"hash/crc32"
)

// fillPiece bounds one copy under the fence, so that a cancel waits for one
// piece at most, and so that the checksum reads what is still in the cache.
const fillPiece = 256 << 10

// Landing is the door through which the payload of one frame reaches its pages.
// It belongs to the goroutine that reads the frame.
type Landing struct {
	imp   *Import // nil: nobody wants the payload
	frame Frame
	runs  [][]byte // where it lands, in order
	spare []byte   // where it goes when it must not land
	left  int
	crc   uint32
}

// Land opens the door for a frame that came over link. A frame that is refused,
// or that nobody waits for, gets a landing that discards its payload; the
// transport reads it all the same, to keep its place in the stream. spare is
// memory for that, not empty.
func (n *Node) Land(link Link, f Frame, spare []byte) *Landing {
	l := &Landing{frame: f, spare: spare, left: f.Bytes}
	i := n.importOn(link, f.ID)
	if i == nil {
		n.stray(f.ID)
		return l
	}
	why := i.claim(&f)
	if why != nil {
		if why.Why != ReasonCanceled { // else it is only late
			n.count.rejected(why.Why)
		}
		i.end(why, true)
		return l
	}
	l.imp, l.runs = i, i.runs(&f)
	return l
}

// stray counts a frame without a transfer, unless the transfer has only just
// ended and the frame was under way.
func (n *Node) stray(id uint64) {
	n.mu.Lock()
	_, late := n.gone[id]
	n.mu.Unlock()
	if !late {
		n.count.rejected("unknown")
	}
}

// claim checks a frame's header against the reservation and takes its pages, so
// that no other frame can.
func (i *Import) claim(f *Frame) *Error {
	s := &i.node.shape
	if f.Epoch != i.peer.Epoch {
		return Failure(ReasonEpoch, fmt.Errorf("frame of epoch %d, not %d", f.Epoch, i.peer.Epoch))
	}
	count := len(f.Refs)
	if f.Layer >= s.Layers || count == 0 || f.Index > len(i.refs)-count || f.Bytes != count*s.PageBytes {
		return Failure(ReasonBounds, fmt.Errorf("frame of layer %d, pages %d+%d, %d bytes", f.Layer, f.Index, count, f.Bytes))
	}
	for k, r := range f.Refs {
		want := i.refs[f.Index+k]
		if r.Block != want.Block {
			return Failure(ReasonBounds, fmt.Errorf("block %d in place of %d", r.Block, want.Block))
		}
		if r.Generation != want.Generation || i.node.cfg.Memory.Generation(r.Block) != want.Generation {
			return Failure(ReasonGeneration, fmt.Errorf("generation %d of block %d", r.Generation, r.Block))
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.state.live() {
		return Failure(ReasonCanceled, nil)
	}
	for k := range count {
		if !i.claimed.add(f.Layer*len(i.refs) + f.Index + k) {
			return Failure(ReasonCoverage, fmt.Errorf("page %d of layer %d came twice", f.Index+k, f.Layer))
		}
	}
	if i.state == Reserved {
		i.timing.FirstByte = i.node.cfg.Clock.Now()
		i.state.to(Moving)
	}
	return nil
}

// runs lists the memory of a frame's pages; adjacent blocks make one run.
func (i *Import) runs(f *Frame) [][]byte {
	var out [][]byte
	for at := 0; at < len(f.Refs); {
		n := 1
		for at+n < len(f.Refs) && f.Refs[at+n].Block == f.Refs[at].Block+int32(n) {
			n++
		}
		out = append(out, i.node.cfg.Memory.Run(f.Layer, f.Refs[at].Block, n))
		at += n
	}
	return out
}

// Left is the payload bytes still to come.
func (l *Landing) Left() int { return l.left }

// Fill calls read once with room for the next bytes; read says how many it put
// there. Where the room is, is settled for the time of the call: in the pages,
// or, when the import is over, beside them. read must not wait: it holds up who
// cancels the import.
func (l *Landing) Fill(read func(room []byte) int) {
	if l.imp == nil {
		l.discard(read)
		return
	}
	l.imp.fence.RLock()
	defer l.imp.fence.RUnlock()
	if !l.imp.open {
		l.imp = nil
		l.discard(read)
		return
	}
	room := l.runs[0]
	got := read(room[:min(len(room), fillPiece)])
	l.crc = crc32.Update(l.crc, Castagnoli, room[:got])
	l.left -= got
	if l.runs[0] = room[got:]; len(l.runs[0]) == 0 {
		l.runs = l.runs[1:]
	}
}

func (l *Landing) discard(read func(room []byte) int) {
	l.left -= read(l.spare[:min(len(l.spare), l.left)])
}

// Close ends the frame, once nothing is left of it: verifies it and counts it.
func (l *Landing) Close() {
	if l.imp == nil || l.left > 0 {
		return
	}
	i := l.imp
	i.node.count.received.Add(float64(l.frame.Bytes))
	if l.crc != l.frame.CRC {
		i.node.count.rejected(ReasonChecksum)
		i.end(Failure(ReasonChecksum, fmt.Errorf("payload of layer %d, page %d", l.frame.Layer, l.frame.Index)), true)
		return
	}
	now := i.node.cfg.Clock.Now()
	i.mu.Lock()
	i.landed += len(l.frame.Refs)
	i.frames++
	i.digest += l.frame.digest()
	i.timing.Bytes += int64(l.frame.Bytes)
	i.timing.Frames++
	if i.last == nil {
		i.silent = now.Add(i.node.cfg.Lease)
	}
	i.mu.Unlock()
	i.settle()
}
