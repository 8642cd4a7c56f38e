package sse

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/wire/openai"
)

// Config sets up the writers of a server. Zero fields take their defaults.
type Config struct {
	// Heartbeat is the silence after which a comment is sent; default 15 s,
	// negative never.
	Heartbeat time.Duration
	// WriteTimeout is how long one write may wait for the client; default 60 s.
	WriteTimeout time.Duration
}

func (c Config) withDefaults() Config {
	if c.Heartbeat == 0 {
		c.Heartbeat = 15 * time.Second
	}
	if c.WriteTimeout == 0 {
		c.WriteTimeout = time.Minute
	}
	return c
}

// ErrSlowClient means that the client did not read for WriteTimeout.
var ErrSlowClient = errors.New("client stopped reading")

var comment = []byte(": keep-alive\n\n")

// Writer is one response. Begin, Write, Fail and Close are called by one
// goroutine; heartbeats come from the writer's own timer.
type Writer struct {
	cfg     Config
	clock   clock.Clock
	w       http.ResponseWriter
	control *http.ResponseController

	writing sync.Mutex // held while bytes go out

	mu     sync.Mutex // guards what follows; never held while waiting
	timer  clock.Timer
	busy   time.Time // since when a write has been going on; zero when none is
	last   time.Time // end of the last write
	slow   bool      // the write deadline was pulled
	closed bool
}

// New makes a writer for a response of which nothing was sent.
func New(w http.ResponseWriter, c clock.Clock, cfg Config) *Writer {
	return &Writer{cfg: cfg.withDefaults(), clock: c, w: w, control: http.NewResponseController(w)}
}

// Begin sends the headers.
func (s *Writer) Begin() error {
	h := s.w.Header()
	h["Content-Type"] = []string{"text/event-stream; charset=utf-8"}
	h["Cache-Control"] = []string{"no-cache"}
	h["X-Accel-Buffering"] = []string{"no"}
	s.w.WriteHeader(http.StatusOK)
	s.mu.Lock()
	s.last = s.clock.Now()
	s.timer = s.clock.AfterFunc(s.nextTick(), s.tick)
	s.mu.Unlock()
	return s.send(nil)
}

// Write delivers whole events. An error means that the client is gone.
func (s *Writer) Write(events []byte) error { return s.send(events) }

// Fail sends e as the stream's last event. The caller then cuts the connection.
func (s *Writer) Fail(e *errs.Error) error {
	event := openai.AppendError([]byte("data: "), e)
	return s.send(append(event, "\n\n"...))
}

// Close ends the heartbeats. Nothing is sent after it returns.
func (s *Writer) Close() {
	s.mu.Lock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	s.writing.Lock() // a heartbeat may be under way
	defer s.writing.Unlock()
}

func (s *Writer) send(p []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	s.busy = s.clock.Now()
	s.mu.Unlock()
	err := s.push(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = time.Time{}
	s.last = s.clock.Now()
	if err != nil && s.slow {
		return &errs.Error{Kind: errs.Canceled, Client: "the client stopped reading", Code: "slow_client", Cause: fmt.Errorf("%w: %w", ErrSlowClient, err)}
	}
	return err
}

func (s *Writer) push(p []byte) error {
	if len(p) > 0 {
		if _, err := s.w.Write(p); err != nil {
			return err
		}
	}
	return s.control.Flush()
}

// tick is the writer's one timer: it ends a write that takes too long and sends
// a heartbeat into a silence. It costs an event nothing.
func (s *Writer) tick() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	now := s.clock.Now()
	if !s.busy.IsZero() {
		if now.Sub(s.busy) >= s.cfg.WriteTimeout {
			s.slow = true
			s.pull(time.Unix(1, 0))
		}
	} else if s.cfg.Heartbeat > 0 && now.Sub(s.last) >= s.cfg.Heartbeat {
		s.mu.Unlock()
		s.beat()
		s.mu.Lock()
	}
	if !s.closed {
		s.timer.Reset(s.nextTick())
	}
	s.mu.Unlock()
}

// nextTick is the time until there may be something to do. The caller holds mu.
func (s *Writer) nextTick() time.Duration {
	now := s.clock.Now()
	wait, beat := s.cfg.WriteTimeout, s.cfg.Heartbeat
	if !s.busy.IsZero() { // which may end at once, and begin a silence
		wait -= now.Sub(s.busy)
	} else {
		beat -= now.Sub(s.last)
	}
	if s.cfg.Heartbeat > 0 {
		wait = min(wait, beat)
	}
	return max(wait, time.Millisecond)
}

// beat sends a comment, unless an event is just going out. It runs on the
// timer's goroutine, so that nobody watches over it: it has a deadline itself.
func (s *Writer) beat() {
	if !s.writing.TryLock() {
		return
	}
	defer s.writing.Unlock()
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return
	}
	s.pull(time.Now().Add(s.cfg.WriteTimeout))
	err := s.push(comment)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = s.clock.Now()
	if err == nil {
		s.pull(time.Time{})
		return
	}
	s.slow = errors.Is(err, os.ErrDeadlineExceeded)
	s.pull(time.Unix(1, 0)) // the next event must not block on a dead client
}

// pull sets the connection's write deadline. A response without one (a test's
// recorder) has no client that could be slow.
func (s *Writer) pull(at time.Time) { _ = s.control.SetWriteDeadline(at) }
