package hub

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
)

const (
	// every is the least time between two messages one way.
	every = 5 * time.Millisecond
	// samplesEvery is the least time between two looks at what workers said.
	samplesEvery = 50 * time.Millisecond
	// keepAlive is the longest time between two messages one way.
	keepAlive = 250 * time.Millisecond
	// patience is how long a side may be silent, or take no message.
	patience = time.Second
	// settle is for how long a new leader tells nothing: until then its sums lack
	// the gateways that have not found it yet.
	settle = 100 * time.Millisecond
	// look is the longest time until a change of leader is noticed.
	look = 50 * time.Millisecond
)

// pace says when the next message is due.
type pace struct {
	clock clock.Clock
	timer clock.Timer
	last  time.Time // of the last message
	dirty bool
}

// newPace is one whose first message is due at once. stop ends it.
func newPace(c clock.Clock) *pace { return &pace{clock: c, timer: c.NewTimer(0)} }

func (p *pace) stop() { p.timer.Stop() }

// next waits until a message is due: every after the last when there is news,
// else keepAlive. News comes by the channels or from check, which is asked
// meanwhile, each look at least, and whose error ends the wait.
func (p *pace) next(ctx context.Context, a, b <-chan struct{}, check func(now time.Time) (news bool, err error)) (time.Time, error) {
	for {
		select {
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		case <-a:
			p.dirty = true
		case <-b:
			p.dirty = true
		case <-p.timer.C():
		}
		now := p.clock.Now()
		news, err := check(now)
		if err != nil {
			return now, err
		}
		p.dirty = p.dirty || news
		due := keepAlive
		if p.dirty {
			due = every
		}
		left := due - now.Sub(p.last)
		if left <= 0 {
			p.last, p.dirty = now, false
			p.timer.Reset(look)
			return now, nil
		}
		p.timer.Reset(min(left, look))
	}
}

// silence calls lapsed when nothing was heard for as long as patience. It begins
// with the first word, and again with the first after it has lapsed.
type silence struct {
	clock  clock.Clock
	lapsed func() // must not stop it

	began time.Time
	last  atomic.Int64 // since began
	armed atomic.Bool

	mu      sync.Mutex
	timer   clock.Timer
	stopped bool
}

func newSilence(c clock.Clock, lapsed func()) *silence {
	return &silence{clock: c, lapsed: lapsed, began: c.Now()}
}

func (s *silence) heard() {
	s.last.Store(int64(s.clock.Now().Sub(s.began)))
	if s.armed.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.armed.Load() {
		return
	}
	s.armed.Store(true)
	if s.timer == nil {
		s.timer = s.clock.AfterFunc(patience, s.fire)
	} else {
		s.timer.Reset(patience)
	}
}

// age is how long ago the last word was.
func (s *silence) age() time.Duration {
	return s.clock.Now().Sub(s.began) - time.Duration(s.last.Load())
}

func (s *silence) fire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	if left := patience - s.age(); left > 0 {
		s.timer.Reset(left)
		return
	}
	s.armed.Store(false)
	s.lapsed()
}

// stop ends it; lapsed is not running when stop returns.
func (s *silence) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	if s.timer != nil {
		s.timer.Stop()
	}
}
