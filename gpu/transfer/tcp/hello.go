package tcp

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/gpu/transfer"
)

// version is the protocol's. Peers of another version are refused.
const version = 1

var magic = []byte("YMKV")

// hello is the first message on each connection, from the dialer, and the
// answer to it.
type hello struct {
	Version   uint16
	Stream    byte
	Refused   byte   // answer: not zero when the connection is refused
	Session   uint64 // chosen by the dialer
	Hash      uint64 // of the sender's memory
	Self      engine.Peer
	Addressee fleet.Epoch // the epoch of the receiver that the sender means
	Receiver  fleet.WorkerID
}

// Why a connection is refused.
const (
	refusedEpoch = iota + 1
	refusedLayout
	refusedBusy
)

func refusal(code byte) error {
	switch code {
	case 0:
		return nil
	case refusedEpoch:
		return transfer.Failure(transfer.ReasonEpoch, errors.New("the peer is another incarnation"))
	case refusedLayout:
		return transfer.Failure(transfer.ReasonLayout, errors.New("the peer's memory has another layout"))
	case refusedBusy:
		return transfer.Failure(transfer.ReasonBusy, errors.New("the peer has too many sessions"))
	default:
		return transfer.Failure(transfer.ReasonConnect, fmt.Errorf("the peer refused: code %d", code))
	}
}

func appendHello(h *hello) []byte {
	body := append([]byte(nil), magic...)
	body = binary.LittleEndian.AppendUint16(body, h.Version)
	body = append(body, h.Stream, h.Refused)
	body = binary.LittleEndian.AppendUint64(body, h.Session)
	body = binary.LittleEndian.AppendUint64(body, h.Hash)
	body = binary.LittleEndian.AppendUint64(body, uint64(h.Self.Epoch))
	body = binary.LittleEndian.AppendUint64(body, uint64(h.Addressee))
	body = transfer.AppendString(body, string(h.Self.ID))
	body = transfer.AppendString(body, string(h.Receiver))
	return append(transfer.AppendHead(nil, transfer.KindHello, body), body...)
}

func decodeHello(kind transfer.Kind, body []byte) (*hello, error) {
	d := transfer.NewDecoder(body)
	if kind != transfer.KindHello || !bytes.Equal(d.Bytes(len(magic)), magic) {
		return nil, fmt.Errorf("%w: no hello", transfer.ErrMalformed)
	}
	h := &hello{Version: d.Uint16(), Stream: d.Byte(), Refused: d.Byte(), Session: d.Uint64(), Hash: d.Uint64()}
	h.Self.Epoch, h.Addressee = fleet.Epoch(d.Uint64()), fleet.Epoch(d.Uint64())
	h.Self.ID = fleet.WorkerID(d.String())
	h.Receiver = fleet.WorkerID(d.String())
	if h.Version != version {
		return nil, fmt.Errorf("%w: version %d, not %d", transfer.ErrMalformed, h.Version, version)
	}
	return h, d.End()
}

func (e *Endpoint) hello() *hello {
	id, epoch := e.node.Self()
	return &hello{Version: version, Hash: e.node.Shape().Hash, Self: engine.Peer{ID: id, Epoch: epoch}}
}

// welcome reads the hello of an accepted connection, answers it, and joins the
// connection to its session.
func (e *Endpoint) welcome(st *stream) (*session, error) {
	kind, body, err := st.message(e.opt.Stall)
	if err != nil {
		return nil, err
	}
	theirs, err := decodeHello(kind, body)
	if err != nil {
		return nil, err
	}
	meant := e.meant(theirs)
	ours := e.hello() // after the wait: the epoch may be new
	ours.Stream, ours.Session = theirs.Stream, theirs.Session
	ours.Addressee, ours.Receiver = theirs.Self.Epoch, theirs.Self.ID
	var s *session
	switch {
	case !meant || theirs.Addressee != ours.Self.Epoch:
		ours.Refused = refusedEpoch
	case theirs.Hash != ours.Hash:
		ours.Refused = refusedLayout
	default:
		if s = e.join(st, theirs); s == nil {
			ours.Refused = refusedBusy
		}
	}
	err = st.write(e.opt.Stall, appendHello(ours))
	if err == nil {
		err = refusal(ours.Refused)
	}
	if err != nil && s != nil {
		s.lose(err)
	}
	return s, err
}

// meant reports whether the hello is for this worker and epoch. For the news of a
// later epoch it waits, and answers while the dialler still listens.
func (e *Endpoint) meant(h *hello) bool {
	ctx, stop := context.WithTimeout(e.ctx, e.opt.Stall/2)
	defer stop()
	self, _ := e.node.Self()
	return h.Receiver == self && e.node.Is(ctx, h.Addressee)
}

// join finds or makes the session that an accepted connection belongs to. It is
// nil when there is no room.
func (e *Endpoint) join(st *stream, h *hello) *session {
	key := acceptKey{string(h.Self.ID), h.Session}
	st.index = int(h.Stream)
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.accepted[key]
	if st.index > 0 {
		if s == nil || !s.attach(st) {
			return nil
		}
		return s
	}
	if s != nil || len(e.accepted) >= e.opt.MaxSessions || e.ctx.Err() != nil {
		return nil
	}
	s = newSession(e, h.Self, h.Session)
	s.dialer = false
	s.forget = func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.accepted[key] == s {
			delete(e.accepted, key)
		}
	}
	if !s.attach(st) {
		return nil
	}
	e.accepted[key] = s
	return s
}

// greet says hello on a dialed connection and checks the answer.
func (s *session) greet(st *stream) error {
	h := s.end.hello()
	h.Stream, h.Session = byte(st.index), s.number
	h.Addressee, h.Receiver = s.peer.Epoch, s.peer.ID
	if err := st.write(s.end.opt.Stall, appendHello(h)); err != nil {
		return err
	}
	kind, body, err := st.message(s.end.opt.Stall)
	if err != nil {
		return err
	}
	answer, err := decodeHello(kind, body)
	switch {
	case err != nil:
		return err
	case answer.Refused != 0:
		return refusal(answer.Refused)
	case answer.Self.ID != s.peer.ID || answer.Self.Epoch != s.peer.Epoch || answer.Session != s.number:
		return transfer.Failure(transfer.ReasonEpoch, errors.New("the peer is another incarnation"))
	case answer.Hash != h.Hash:
		return transfer.Failure(transfer.ReasonLayout, errors.New("the peer's memory has another layout"))
	}
	return nil
}

func randomNumber() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}
