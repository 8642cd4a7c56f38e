package tcp

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/gpu/transfer"
)

// maxControl bounds the control messages queued on a session. A transfer has a
// handful; more means that the connection does not advance.
const maxControl = 16384

// streamWorth is how many bytes one stream is for; each further doubling of the
// streams takes eight times as many.
const streamWorth = 4 << 20

// session is one link: up to MaxStreams connections to one incarnation of a peer.
type session struct {
	end    *Endpoint
	peer   engine.Peer
	number uint64
	dialer bool
	forget func() // takes it off the endpoint's table

	mu      sync.Mutex
	work    sync.Cond // something to write, or lost
	streams []*stream
	wanted  int // streams that the transfers so far deserve
	dialing int // streams that are open, were tried or are being dialed
	control []transfer.Message
	moves   []*transfer.Move
	lost    error
	used    time.Time
	down    sync.Once
}

func newSession(e *Endpoint, peer engine.Peer, number uint64) *session {
	s := &session{end: e, peer: peer, number: number, dialer: true, used: e.opt.Clock.Now()}
	s.work.L = &s.mu
	return s
}

// Peer implements transfer.Link.
func (s *session) Peer() engine.Peer { return s.peer }

// Send implements transfer.Link.
func (s *session) Send(m transfer.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost != nil {
		return s.lost
	}
	if len(s.control) >= maxControl {
		return transfer.Failure(transfer.ReasonBusy, errors.New("the session does not advance"))
	}
	s.control = append(s.control, m)
	s.work.Broadcast() // only the first stream takes it
	return nil
}

// Move implements transfer.Link. The queue holds references to pages that the
// engine keeps, at most one per page of each transfer.
func (s *session) Move(m *transfer.Move) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost != nil {
		return s.lost
	}
	s.moves = append(s.moves, m)
	s.work.Signal()
	return nil
}

// Expect implements transfer.Link: more bytes deserve more streams.
func (s *session) Expect(n int64) {
	streams := 1
	for ; n > streamWorth && streams < s.end.opt.MaxStreams; n /= 8 {
		streams *= 2
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = s.end.opt.Clock.Now()
	s.wanted = max(s.wanted, min(streams, s.end.opt.MaxStreams))
	s.grow()
}

// grow dials the streams that are wanted beside the first, which must have been
// greeted before others can join it. The caller holds mu.
func (s *session) grow() {
	for s.dialer && s.lost == nil && len(s.streams) > 0 && s.dialing < s.wanted {
		index := s.dialing
		s.dialing++
		s.end.wg.Go(func() { s.dialStream(index) })
	}
}

func (s *session) touch() {
	s.mu.Lock()
	s.used = s.end.opt.Clock.Now()
	s.mu.Unlock()
}

// idle is how long nobody has asked for the session. It is 0 for one accepted.
func (s *session) idle(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.dialer {
		return 0
	}
	return now.Sub(s.used)
}

// dial opens the first stream and runs it.
func (s *session) dial() {
	s.mu.Lock()
	s.dialing = 1
	s.mu.Unlock()
	s.dialStream(0)
}

// dialStream opens a stream and runs it. The session does without a stream that
// cannot be had, but for the first.
func (s *session) dialStream(index int) {
	st, err := s.connect(index)
	if err == nil {
		s.run(st)
		return
	}
	if index == 0 {
		s.lose(transfer.AsError(transfer.ReasonConnect, err))
	}
}

func (s *session) connect(index int) (*stream, error) {
	conn, err := s.end.dialConn(s.peer.Transfer)
	if err != nil {
		return nil, err
	}
	st, err := s.end.open(conn)
	if err == nil {
		st.index = index
		err = s.greet(st)
	}
	if err == nil && !s.attach(st) {
		err = errors.New("the session is over")
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return st, nil
}

// attach makes st one of the session's streams. It is false when the session is
// lost or has such a stream.
func (s *session) attach(st *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost != nil || st.index >= s.end.opt.MaxStreams {
		return false
	}
	for _, other := range s.streams {
		if other.index == st.index {
			return false
		}
	}
	s.streams = append(s.streams, st)
	s.grow()
	return true
}

// run reads and writes st until the session is lost. One stream's end is the
// session's: a frame may have been lost with it.
func (s *session) run(st *stream) {
	var wg sync.WaitGroup
	wg.Go(func() { s.lose(s.writeAll(st)) })
	s.lose(readMessages(st, s.end.node, s, s.end.opt.Stall))
	wg.Wait()
}

// Close implements transfer.Link.
func (s *session) Close(cause error) { s.lose(cause) }

// lose ends the session. The first cause is the one that its transfers hear.
func (s *session) lose(cause error) {
	s.mu.Lock()
	if s.lost == nil {
		if cause == nil {
			cause = errors.New("the connection ended")
		}
		s.lost = cause
		s.control, s.moves = nil, nil
		for _, st := range s.streams {
			_ = st.conn.Close()
		}
		s.work.Broadcast()
	}
	s.mu.Unlock()
	s.down.Do(func() {
		s.forget()
		s.end.node.Down(s, s.lost)
	})
}

// drain waits, a little, until the queued control messages are written.
func (s *session) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost != nil || len(s.streams) == 0 {
		return
	}
	s.control = append(s.control, nil) // the first stream ends the session when it gets here
	s.work.Broadcast()
	timer := time.AfterFunc(min(s.end.opt.Stall, drainTime), func() { s.lose(errIdle) })
	defer timer.Stop()
	for s.lost == nil {
		s.work.Wait()
	}
}

const drainTime = 200 * time.Millisecond

// next waits for the stream's next work: control messages (only on the first
// stream), else one frame. It is an error when the session is lost.
func (s *session) next(index int) ([]transfer.Message, *transfer.Move, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.lost == nil {
		if index == 0 && len(s.control) > 0 {
			control := s.control
			s.control = nil
			return control, nil, nil
		}
		if len(s.moves) > 0 {
			m := s.moves[0]
			s.moves[0] = nil
			s.moves = s.moves[1:]
			return nil, m, nil
		}
		s.work.Wait()
	}
	return nil, nil, s.lost
}

// writeAll writes what the session has to send.
func (s *session) writeAll(st *stream) error {
	stall := s.end.opt.Stall
	var head []byte
	for {
		control, move, err := s.next(st.index)
		if err != nil {
			return err
		}
		if move != nil {
			if head, err = st.move(stall, head[:0], move); err != nil {
				return err
			}
			continue
		}
		head = head[:0]
		for _, m := range control {
			if m == nil {
				_ = st.write(stall, head) // best effort: the session ends here anyway
				return errIdle
			}
			head = transfer.Append(head, m)
		}
		if err := st.write(stall, head); err != nil {
			return err
		}
	}
}

// readMessages hands node what arrives on st, which belongs to link, until
// something does not fit or the connection ends.
func readMessages(st *stream, node *transfer.Node, link transfer.Link, stall time.Duration) error {
	for {
		if err := st.await(); err != nil {
			return err
		}
		kind, body, err := st.message(stall)
		if err != nil {
			return err
		}
		if kind != transfer.KindFrame {
			m, err := transfer.Decode(kind, body)
			if err != nil {
				return err
			}
			node.Handle(link, m)
			continue
		}
		f, err := transfer.DecodeFrame(body)
		if err != nil {
			return err
		}
		if f.Bytes > maxPayload {
			return fmt.Errorf("%w: frame of %d bytes", transfer.ErrMalformed, f.Bytes)
		}
		if err := st.payload(stall, node.Land(link, f, st.spare)); err != nil {
			return err
		}
	}
}
