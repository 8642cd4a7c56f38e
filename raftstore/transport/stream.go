package transport

import (
	"bufio"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// stream sends entries to one follower, several requests ahead of its answers. It
// takes the place of the library's pipeline, whose coding and goroutines cost more
// than the entries.
type stream struct {
	conn    *outConn
	timeout time.Duration
	hold    func([]*raft.Log) error // see Guarded.Hold; set before anything is sent

	pause func() time.Duration // see Guarded.Pace; set before, too

	// Of the goroutine that sends.
	buf    []byte
	commit uint64 // last told
	told   time.Time

	underway chan *sent // oldest first
	answers  chan raft.AppendFuture
	closed   chan struct{}
	close    sync.Once
	task     sync.WaitGroup
}

const (
	// maxUnderway is how many requests wait for their answers. More would only
	// lengthen the queue of a follower that is slow.
	maxUnderway = 4
	// maxKept bounds the buffer that is kept for the next request.
	maxKept = 256 << 10
	// quiet is how long nothing is sent to a follower that has nothing to learn. Its
	// answers are a second sign of life beside heartbeats, which a busy machine needs:
	// with a second here leaders lost their lease of 150 ms at four times the load a
	// machine has cores for.
	quiet = 50 * time.Millisecond
)

// sent is a request under way.
type sent struct {
	begin time.Time
	req   *raft.AppendEntriesRequest
	resp  *raft.AppendEntriesResponse
	err   error // set before it is handed on
}

func (s *sent) Error() error                          { return s.err }
func (s *sent) Start() time.Time                      { return s.begin }
func (s *sent) Request() *raft.AppendEntriesRequest   { return s.req }
func (s *sent) Response() *raft.AppendEntriesResponse { return s.resp }

// openStream says what the connection is for. The stream owns it from now on.
func openStream(conn *outConn, timeout time.Duration) (*stream, error) {
	_ = conn.SetWriteDeadline(time.Now().Add(timeout))
	if _, err := conn.Write([]byte{streamMagic}); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	s := &stream{
		conn: conn, timeout: timeout, hold: func([]*raft.Log) error { return nil }, pause: func() time.Duration { return 0 },
		underway: make(chan *sent, maxUnderway), answers: make(chan raft.AppendFuture, maxAnswers), closed: make(chan struct{}),
	}
	s.task.Go(s.receive)
	return s, nil
}

// AppendEntries sends a request. It is called by one goroutine.
func (s *stream) AppendEntries(req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	f := &sent{begin: time.Now(), req: req, resp: resp}
	if len(req.Entries) == 0 && req.LeaderCommitIndex == s.commit && f.begin.Sub(s.told) < quiet {
		return f, nil // nobody waits for its answer
	}
	s.buf = appendRequest(s.buf[:0], req)
	if err := s.queue(f); err != nil {
		return nil, err
	}
	_ = s.conn.SetWriteDeadline(f.begin.Add(s.timeout))
	if _, err := s.conn.Write(s.buf); err != nil {
		return nil, err
	}
	s.commit, s.told = req.LeaderCommitIndex, f.begin
	if cap(s.buf) > maxKept {
		s.buf = nil
	}
	if len(req.Entries) > 0 {
		s.rest(s.pause())
	}
	return f, nil
}

func (s *stream) rest(pause time.Duration) {
	if pause <= 0 {
		return
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.closed:
	}
}

// errNoAnswers means that a follower does not answer, or the library does not look.
var errNoAnswers = errors.New("answers do not come")

// queue notes that a request is under way, once not too many are.
func (s *stream) queue(f *sent) error {
	select {
	case <-s.closed:
		return raft.ErrPipelineShutdown
	case s.underway <- f:
		return nil
	default:
	}
	timer := time.NewTimer(s.timeout)
	defer timer.Stop()
	select {
	case s.underway <- f:
		return nil
	case <-s.closed:
		return raft.ErrPipelineShutdown
	case <-timer.C:
		return fmt.Errorf("%w: %d requests under way for %v", errNoAnswers, maxUnderway, s.timeout)
	}
}

// receive hands on answers until the stream ends.
func (s *stream) receive() {
	defer func() { _ = s.conn.Close() }() // whoever sends finds out
	in := bufio.NewReaderSize(s.conn, 4096)
	for {
		select {
		case <-s.closed:
			return
		case f := <-s.underway:
			_ = s.conn.SetReadDeadline(f.begin.Add(s.timeout))
			err := s.answer(in, f)
			select {
			case s.answers <- f:
			case <-s.closed:
				return
			}
			if err != nil {
				return
			}
		}
	}
}

// answer reads the answer to a request. An error means that none can follow.
func (s *stream) answer(in *bufio.Reader, f *sent) error {
	frame, err := ReadFrame(in, maxAnswerFrame)
	if err == nil {
		f.err, err = parseAnswer(frame, f.resp)
	}
	if err == nil {
		err = s.hold(f.req.Entries)
	}
	if err != nil {
		f.err, *f.resp = err, raft.AppendEntriesResponse{}
	}
	return err
}

// Consumer gives the answers.
func (s *stream) Consumer() <-chan raft.AppendFuture { return s.answers }

// Close ends the stream and waits for its goroutine.
func (s *stream) Close() error {
	s.close.Do(func() { close(s.closed) })
	err := s.conn.Close()
	s.task.Wait()
	return err
}

// serveStream takes entries in from a leader and answers them in their order.
func (r *raftNet) serveStream(c *Conn) {
	in := bufio.NewReaderSize(c, 64<<10)
	answers := make(chan raft.RPCResponse, 1)
	var out []byte
	for {
		frame, err := ReadFrame(in, maxRequestFrame)
		if err != nil {
			return
		}
		req, err := parseRequest(frame)
		if err != nil {
			r.port.refuse(c.raw, c.PeerID, err)
			return
		}
		rpc := raft.RPC{Command: req, RespChan: answers}
		if err := r.from(c, rpc); err != nil {
			r.port.refuse(c.raw, c.PeerID, err)
			rpc.Respond(nil, err)
		} else {
			r.hand(rpc)
		}
		var a raft.RPCResponse
		select {
		case a = <-answers:
		case <-r.ctx.Done():
			return
		}
		resp, ok := a.Response.(*raft.AppendEntriesResponse)
		if !ok {
			resp = &raft.AppendEntriesResponse{}
		}
		out = appendAnswer(out[:0], resp, a.Error)
		_ = c.SetWriteDeadline(time.Now().Add(r.port.cfg.stall))
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}
