package load

import (
	"sync/atomic"
	"time"
)

// Backoff says for how long an unreachable worker is left out: First after the
// first failure, twice as long after each further one, at most Longest.
type Backoff struct{ First, Longest time.Duration }

// ejection is the passive ejection of one incarnation.
type ejection struct {
	until    atomic.Int64 // unix nanoseconds
	failures atomic.Int64 // since the last success
	connect  atomic.Bool  // for want of a connection
}

// Eject leaves the incarnation out until now plus the backoff's next step. It
// reports whether the worker was in service before, so that a burst of failures
// which began together counts once.
func (s *Slot) Eject(now time.Time, b Backoff) bool {
	until := s.ejected.until.Load()
	if now.UnixNano() < until {
		return false
	}
	n := s.ejected.failures.Load()
	wait := b.Longest
	if n < 30 && b.First<<n < b.Longest {
		wait = b.First << n
	}
	s.ejected.connect.Store(false)
	if !s.ejected.until.CompareAndSwap(until, now.Add(wait).UnixNano()) {
		return false
	}
	s.ejected.failures.Add(1)
	s.renew()
	return true
}

// Reached says that the incarnation answered: it is in service again.
func (s *Slot) Reached() {
	if s.ejected.failures.Load() != 0 {
		s.ejected.failures.Store(0)
		s.ejected.until.Store(0)
	}
}

// Heal ends an ejection early: the worker accepts connections again. How long
// the next one lasts is not forgotten.
func (s *Slot) Heal() { s.ejected.until.Store(0) }

// Unreachable reports whether the incarnation is ejected for connections that it
// did not accept, so that one that it accepts would prove it back.
func (s *Slot) Unreachable(now time.Time) bool {
	until := s.ejected.until.Load()
	return until != 0 && now.UnixNano() < until && s.ejected.connect.Load()
}

// OutOfService reports whether the incarnation is ejected, for whatever reason.
func (s *Slot) OutOfService(now time.Time) bool { return now.UnixNano() < s.ejected.until.Load() }

// EjectUnreachable is Eject for a connection that was not accepted.
func (s *Slot) EjectUnreachable(now time.Time, b Backoff) bool {
	if !s.Eject(now, b) {
		return false
	}
	s.ejected.connect.Store(true)
	return true
}
