package logline

import (
	"errors"
	"io"
	"sync"
	"time"
)

const (
	// pause is how long lines gather after some were written.
	pause = 20 * time.Millisecond
	// maxPending bounds the lines that wait to be written, in bytes.
	maxPending = 1 << 20
	// keptPending is the longest buffer that is kept for the next lines.
	keptPending = 256 << 10
	// farewell is how long close waits for the writer.
	farewell = time.Second
)

// errStuck means that the log's writer took nothing for too long.
var errStuck = errors.New("logline: the log could not be written in time")

// sink gathers lines and writes them. Its goroutine runs while there are some, and
// is not started again once the sink is closed: nobody would wait for it.
type sink struct {
	w    io.Writer
	says func(lost int) []byte

	mu      sync.Mutex
	pending []byte
	spare   []byte
	lost    int
	running chan struct{} // closed when the goroutine ends; nil while there is none
	hurry   chan struct{} // closed by close
	closed  bool

	late sync.Mutex // held by a caller that writes its own line
}

func newSink(w io.Writer, says func(int) []byte) *sink {
	return &sink{w: w, says: says, hurry: make(chan struct{})}
}

// add takes a line in, which it copies, or writes it where all is over.
func (s *sink) add(line []byte) {
	if s.gather(line) {
		return
	}
	s.late.Lock()
	defer s.late.Unlock()
	_, _ = s.w.Write(line) // there is no other place to tell of it
}

// gather leaves a line to the goroutine. taken is false once the sink is closed and
// the goroutine has ended, for ever.
func (s *sink) gather(line []byte) (taken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil && s.closed {
		return false
	}
	if len(s.pending) > 0 && len(s.pending)+len(line) > maxPending {
		s.lost++
		return true
	}
	s.pending = append(s.pending, line...)
	if s.running == nil {
		s.running = make(chan struct{})
		go s.run(s.running)
	}
	return true
}

// run writes until nothing is left.
func (s *sink) run(ended chan struct{}) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		out := s.take(ended)
		if out == nil {
			return
		}
		_, _ = s.w.Write(out) // as in add
		s.give(out)
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-s.hurry:
		}
	}
}

// take is what is to be written; nil ends the goroutine.
func (s *sink) take(ended chan struct{}) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) == 0 {
		s.running = nil
		close(ended)
		return nil
	}
	out := s.pending
	s.pending, s.spare = s.spare, nil
	if s.lost > 0 {
		s.pending = append(s.pending, s.says(s.lost)...)
		s.lost = 0
	}
	return out
}

func (s *sink) give(out []byte) {
	if cap(out) > keptPending {
		return
	}
	s.mu.Lock()
	s.spare = out[:0]
	s.mu.Unlock()
}

func (s *sink) close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.hurry)
	}
	running := s.running
	s.mu.Unlock()
	if running == nil {
		return nil
	}
	timer := time.NewTimer(farewell)
	defer timer.Stop()
	select {
	case <-running:
		return nil
	case <-timer.C:
		return errStuck
	}
}
