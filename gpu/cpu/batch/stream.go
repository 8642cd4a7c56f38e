package batch

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	"github.com/yardmaster/yardmaster/gpu/cpu/sample"
)

// Finish is why a request ended.
type Finish string

// The finish reasons.
const (
	FinishStop      Finish = "stop"      // a stop token
	FinishLength    Finish = "length"    // MaxTokens or the context
	FinishPrefilled Finish = "prefilled" // a prefill leg: computed, exported and released
	FinishAbort     Finish = "abort"     // its context ended, or the engine closed
	FinishError     Finish = "error"     // it could not be computed
)

// NoToken is the Token of an event without one.
const NoToken = -1

// Event is one step of a request.
type Event struct {
	// Token is the generated token, the stop token included, or NoToken.
	Token int32
	// LogProb and Top are as in [sample.Chosen].
	LogProb float32
	Top     []sample.TokenLogProb
	// Finish is set on the last event, and only there.
	Finish Finish
	// Err is why, for FinishAbort and FinishError.
	Err error
}

// Usage counts a request's tokens.
type Usage struct {
	Prompt     int
	Cached     int // prompt tokens found in this engine's cache, of Prompt
	Completion int // generated, the stop token included
}

// Stream is the output of one request. Recv is for one goroutine at a time; the
// other methods are safe for concurrent use.
type Stream struct {
	events chan Event // one more than the buffer: a last event always fits
	full   atomic.Bool
	wake   func()
	cancel func()

	mu    sync.Mutex
	usage Usage
	kv    string
}

// Recv waits for the next event. After the last one it returns io.EOF; any
// other error is ctx's and ends nothing: the request goes on.
func (s *Stream) Recv(ctx context.Context) (Event, error) {
	select {
	case ev, ok := <-s.events:
		return s.received(ev, ok)
	default:
	}
	select {
	case ev, ok := <-s.events:
		return s.received(ev, ok)
	case <-ctx.Done():
		return Event{}, ctx.Err()
	}
}

func (s *Stream) received(ev Event, ok bool) (Event, error) {
	if !ok {
		return Event{}, io.EOF
	}
	if s.full.CompareAndSwap(true, false) {
		s.wake()
	}
	return ev, nil
}

// Close gives the request up, if it has not ended. The reader may leave without
// taking the remaining events.
func (s *Stream) Close() { s.cancel() }

// Usage is the tokens so far.
func (s *Stream) Usage() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usage
}

// KV is what became of a decode leg's transfer: "moved", "recomputed; reason",
// or "local" when nothing had to move. It is known before the first event, and
// empty before and on other requests.
func (s *Stream) KV() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kv
}

func (s *Stream) setKV(kv string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kv = kv
}

func (s *Stream) setCached(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.usage.Cached = n
}

// blocked reports whether a token event would not fit, and if so arranges for
// the reader to wake the engine. Only the engine's goroutine calls it: nobody
// else fills the channel.
func (s *Stream) blocked() bool {
	if len(s.events) < cap(s.events)-1 {
		return false
	}
	s.full.Store(true)
	// The reader may have drained it before it could see the flag.
	return len(s.events) >= cap(s.events)-1
}

// send delivers an event that is known to fit.
func (s *Stream) send(ev Event) {
	if ev.Token != NoToken {
		s.mu.Lock()
		s.usage.Completion++
		s.mu.Unlock()
	}
	s.events <- ev
	if ev.Finish != "" {
		close(s.events)
	}
}
