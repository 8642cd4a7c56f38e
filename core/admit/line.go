package admit

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
)

// Lobby is where requests wait while no worker takes them: one [Line] a model.
type Lobby struct {
	clock   clock.Clock
	longest int
	waiting atomic.Int64

	mu    sync.Mutex
	lines []*Line
}

// NewLobby makes a lobby whose lines are at most longest each; 0 means 1024.
func NewLobby(c clock.Clock, longest int) *Lobby {
	if longest <= 0 {
		longest = 1024
	}
	return &Lobby{clock: c, longest: longest}
}

// NewLine adds a line. Lines are as many as models are known, and stay. depth,
// which may be nil, is told how many wait.
func (l *Lobby) NewLine(depth func(n int)) *Line {
	if depth == nil {
		depth = func(int) {}
	}
	line := &Line{lobby: l, depth: depth}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
	return line
}

// Waiting is the number of requests in all lines.
func (l *Lobby) Waiting() int { return int(l.waiting.Load()) }

// Stir lets the front of each line try again: capacity may have come. It costs
// one load while nobody waits.
func (l *Lobby) Stir() {
	if l.waiting.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		line.stir()
	}
}

// Line is the requests of one model that wait. The most urgent is first; of those
// that are equally urgent the one of the tenant that is served least ([Tenants]),
// and of one tenant's the first that came. Whoever has waited for patience is as
// urgent as any, so nobody waits for ever. It is safe for concurrent use.
type Line struct {
	lobby *Lobby
	depth func(n int)
	n     atomic.Int64

	mu          sync.Mutex
	first, last *Spot // in the order in which they came
	front       *Spot // whose turn it is
}

// patience is how long a request waits before its priority no longer matters.
const patience = 10 * time.Second

// Len is the number of requests that wait. Who comes while it is not zero takes
// a place behind them.
func (l *Line) Len() int { return int(l.n.Load()) }

// Spot is a request's place in a line. Its methods are called by one goroutine.
type Spot struct {
	line       *Line
	prev, next *Spot
	wake       chan struct{} // room for one
	timer      clock.Timer
	joined     time.Time
	priority   uint8
	visit      *Visit // nil without a tenant
	left       bool
}

// Join takes a place; the caller calls Leave. visit is the request's, and may be nil.
// The error is of kind Saturated and wraps ErrFull when the line is as long as it may
// be.
func (l *Line) Join(priority uint8, visit *Visit) (*Spot, error) {
	s := &Spot{line: l, wake: make(chan struct{}, 1), joined: l.lobby.clock.Now(), priority: priority, visit: visit}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n.Load() >= int64(l.lobby.longest) {
		return nil, full("as many requests wait for this model as may", "requests waiting", int64(l.lobby.longest))
	}
	if s.prev = l.last; s.prev == nil {
		l.first = s
	} else {
		s.prev.next = s
	}
	l.last = s
	l.count(1)
	visit.wait(true)
	l.turn() // it may have been its turn a moment ago
	return s, nil
}

// turn finds whose turn it is and wakes it if that is another's than before. The
// lock is held. A line is at most some hundred long, and turns come when one leaves.
func (l *Line) turn() {
	var best *Spot
	var standing turnKey
	now := l.lobby.clock.Now()
	for s := l.first; s != nil; s = s.next {
		if key := s.key(now); best == nil || key.before(standing) {
			best, standing = s, key
		}
	}
	if best != nil && best != l.front {
		best.signal()
	}
	l.front = best
}

// turnKey orders those that wait.
type turnKey struct {
	urgency uint8
	service float64
}

func (s *Spot) key(now time.Time) turnKey {
	k := turnKey{urgency: s.priority}
	if now.Sub(s.joined) >= patience {
		return turnKey{math.MaxUint8, -1} // among those like it the first that came
	}
	if s.visit != nil {
		k.service = s.visit.service()
	}
	return k
}

func (k turnKey) before(other turnKey) bool {
	if k.urgency != other.urgency {
		return k.urgency > other.urgency
	}
	return k.service < other.service
}

// Waited is the time since Join.
func (s *Spot) Waited() time.Duration { return s.line.lobby.clock.Now().Sub(s.joined) }

// Await waits until it is worth trying, but no longer than d: something changed
// while the spot was at the front, or it has just come there. front says whether
// it is there. The error is ctx's cause.
func (s *Spot) Await(ctx context.Context, d time.Duration) (front bool, err error) {
	if s.timer == nil {
		s.timer = s.line.lobby.clock.NewTimer(d)
	} else {
		s.timer.Reset(d)
	}
	select {
	case <-s.wake:
	case <-s.timer.C():
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	return s.Front(), nil
}

// Front reports whether it is the turn of s.
func (s *Spot) Front() bool {
	s.line.mu.Lock()
	defer s.line.mu.Unlock()
	return s.line.front == s
}

// Leave gives the place up, wherever it is. The next one's turn begins. Leaving
// again does nothing.
func (s *Spot) Leave() {
	if s.left {
		return
	}
	s.left = true
	if s.timer != nil {
		s.timer.Stop()
	}
	l := s.line
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.prev == nil {
		l.first = s.next
	} else {
		s.prev.next = s.next
	}
	if s.next == nil {
		l.last = s.prev
	} else {
		s.next.prev = s.prev
	}
	s.prev, s.next = nil, nil
	l.count(-1)
	s.visit.wait(false)
	if l.front == s {
		l.turn()
	}
}

// count is called with the lock held.
func (l *Line) count(by int64) {
	l.lobby.waiting.Add(by)
	l.depth(int(l.n.Add(by)))
}

func (l *Line) stir() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.front != nil {
		l.front.signal()
	}
}

func (s *Spot) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
