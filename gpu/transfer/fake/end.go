package fake

import (
	"errors"
	"hash/crc32"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/gpu/transfer"
)

// end is one worker's end of a link.
type end struct {
	owner *Worker
	peer  engine.Peer
	other *end // nil while there is nobody
	lost  error
	queue []item
	busy  bool
}

// item is a control message or a move, queued.
type item struct {
	message transfer.Message
	move    *transfer.Move
}

// packet is what travels.
type packet struct {
	bytes   []byte // head and body
	payload []byte // of a frame
}

// Peer implements transfer.Link.
func (e *end) Peer() engine.Peer { return e.peer }

// Expect implements transfer.Link.
func (*end) Expect(int64) {}

// Close implements transfer.Link.
func (e *end) Close(cause error) {
	e.lose(cause)
	e.hangUp(errors.New("connection closed"))
}

// Send implements transfer.Link.
func (e *end) Send(m transfer.Message) error { return e.enqueue(item{message: m}) }

// Move implements transfer.Link.
func (e *end) Move(m *transfer.Move) error { return e.enqueue(item{move: m}) }

func (e *end) enqueue(i item) error {
	if e.lost != nil {
		return e.lost
	}
	e.queue = append(e.queue, i)
	e.pump()
	return nil
}

// lose ends this end. The node hears of it as an event of its own, for it may
// be in the middle of something.
func (e *end) lose(cause error) {
	if e.lost != nil {
		return
	}
	e.lost = cause
	e.queue = nil
	w := e.owner
	if w.ends[e.peer] == e {
		delete(w.ends, e.peer)
	}
	w.net.after(0, w, func() { w.Node.Down(e, cause) })
}

// hangUp lets the other end know, in time.
func (e *end) hangUp(cause error) {
	if o := e.other; o != nil {
		o.owner.net.after(o.owner.net.Latency, o.owner, func() { o.lose(cause) })
	}
}

// pump sends what is first in the queue, unless something is being sent.
func (e *end) pump() {
	if e.busy || len(e.queue) == 0 || e.lost != nil {
		return
	}
	next := e.queue[0]
	e.queue = e.queue[1:]
	if next.move != nil && !next.move.Begin() {
		e.pump()
		return
	}
	n := e.owner.net
	size := transfer.HeadBytes
	if next.move != nil {
		size += next.move.Frame.Bytes
	}
	e.busy = true
	n.after(time.Duration(float64(size)/n.BytesPerSecond*float64(time.Second)), e.owner, func() {
		hold := e.sent(next)
		n.after(hold, e.owner, func() {
			e.busy = false
			e.pump()
		})
	})
}

// sent ends the sending of an item and starts it on its way. It returns how long
// nothing else is sent.
func (e *end) sent(i item) (hold time.Duration) {
	w := e.owner
	var f *transfer.Frame
	p := packet{}
	if i.move != nil {
		if w.net.OnRead != nil {
			w.net.OnRead(i.move)
		}
		for _, page := range i.move.Pages { // at the last moment they may be read
			p.payload = append(p.payload, page...)
		}
		i.move.Frame.CRC = crc32.Checksum(p.payload, transfer.Castagnoli)
		f = &i.move.Frame
		if e.lost != nil {
			i.move.Failed(e.lost)
			return 0
		}
		defer i.move.Sent()
	}
	if e.lost != nil {
		return 0
	}
	wrong := w.net.faultOf(w)
	p.bytes = encode(i.message, f, wrong)
	if wrong == nil {
		e.travel(p, 0)
		return 0
	}
	return e.travelFaulty(p, wrong)
}

// encode puts a message in the form it has on the wire, or in the wrong one.
func encode(m transfer.Message, f *transfer.Frame, wrong *Fault) []byte {
	generation := wrong != nil && wrong.Kind == WrongGeneration
	epoch := wrong != nil && wrong.Kind == WrongEpoch
	if f != nil {
		lie := *f
		lie.Refs = append([]transfer.Ref(nil), f.Refs...)
		if generation {
			lie.Refs[0].Generation--
		}
		if epoch {
			lie.Epoch++
		}
		return transfer.AppendFrame(nil, &lie)
	}
	if epoch {
		switch r := m.(type) {
		case *transfer.Reserve:
			lie := *r
			lie.Source++
			m = &lie
		case *transfer.Finish:
			lie := *r
			lie.Epoch++
			m = &lie
		}
	}
	return transfer.Append(nil, m)
}

// faultOf is what goes wrong with the packet that w is sending, or nil.
func (n *Network) faultOf(w *Worker) *Fault {
	nth := w.sent
	w.sent++
	for i := range n.script {
		if f := &n.script[i]; f.From == w.peer.ID && f.Nth == nth {
			return f
		}
	}
	return nil
}

func (e *end) travelFaulty(p packet, f *Fault) (hold time.Duration) {
	n := e.owner.net
	switch f.Kind {
	case Drop:
		return 0
	case Corrupt:
		at := n.random.IntN(len(p.bytes) + len(p.payload))
		if at < len(p.bytes) {
			p.bytes[at] ^= 1 << n.random.IntN(8)
		} else {
			p.payload[at-len(p.bytes)] ^= 1 << n.random.IntN(8)
		}
	case Duplicate:
		e.travel(p, 0)
	case Reorder:
		e.travel(p, 5*n.Latency)
		return 0
	case Stall:
		e.travel(p, f.For)
		return f.For
	case HalfFrame:
		e.travelHalf(p)
		return 0
	case Die:
		n.Kill(e.owner)
		return 0
	case WrongGeneration, WrongEpoch, kinds: // encoded already
	}
	e.travel(p, 0)
	return 0
}

// travel brings p to the other end.
func (e *end) travel(p packet, delay time.Duration) {
	if e.other != nil {
		e.owner.net.after(e.owner.net.Latency+delay, e.other.owner, func() { e.other.arrive(p) })
	}
}

// travelHalf brings half of p to the other end, and loses the link.
func (e *end) travelHalf(p packet) {
	o, n := e.other, e.owner.net
	broken := errors.New("connection reset")
	if o == nil {
		return
	}
	n.after(n.Latency, o.owner, func() {
		if len(p.payload) > 0 {
			o.land(p, len(p.payload)/2)
		}
		o.lose(broken)
	})
	e.lose(broken)
}

// arrive takes a packet from the other end.
func (e *end) arrive(p packet) {
	if e.lost != nil {
		return
	}
	head, err := transfer.ParseHead(p.bytes[:transfer.HeadBytes])
	if err == nil {
		err = head.Check(p.bytes[transfer.HeadBytes:])
	}
	if err != nil {
		e.Close(transfer.Failure(transfer.ReasonChecksum, err))
		return
	}
	if head.Kind == transfer.KindFrame {
		e.land(p, len(p.payload))
		return
	}
	m, err := transfer.Decode(head.Kind, p.bytes[transfer.HeadBytes:])
	if err != nil {
		e.Close(transfer.Failure(transfer.ReasonChecksum, err))
		return
	}
	e.owner.Node.Handle(e, m)
}

// land puts the first n bytes of a frame's payload down, a piece at a time.
func (e *end) land(p packet, n int) {
	f, err := transfer.DecodeFrame(p.bytes[transfer.HeadBytes:])
	if err != nil {
		e.Close(transfer.Failure(transfer.ReasonChecksum, err))
		return
	}
	l := e.owner.Node.Land(e, f, make([]byte, 256))
	e.piece(l, p.payload[:n], max(n/3, 1))
}

func (e *end) piece(l *transfer.Landing, rest []byte, size int) {
	for taken := 0; len(rest) > 0 && taken < size; {
		l.Fill(func(room []byte) int {
			k := copy(room[:min(len(room), size-taken)], rest)
			taken += k
			rest = rest[k:]
			return k
		})
	}
	if len(rest) == 0 {
		l.Close()
		return
	}
	e.owner.net.after(e.owner.net.Latency/4, e.owner, func() { e.piece(l, rest, size) })
}
