package clock

import (
	"sync"
	"time"
)

// Clock tells the time and wakes its callers.
type Clock interface {
	// Now is the current time. It never goes backwards.
	Now() time.Time
	// NewTimer delivers the time on C once, after d.
	NewTimer(d time.Duration) Timer
	// AfterFunc calls f after d in a goroutine that is not the caller's. The
	// timer's C is nil; its Stop does not wait for a call that has begun.
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is a one-shot alarm.
type Timer interface {
	// C delivers the time when the timer fires. It has room for one value.
	C() <-chan time.Time
	// Stop disarms the timer and reports whether it was still armed. After
	// Stop returns, C delivers nothing.
	Stop() bool
	// Reset arms the timer anew.
	Reset(d time.Duration)
}

// Real is the machine's clock.
type Real struct{}

// Now is time.Now.
func (Real) Now() time.Time { return time.Now() } //nolint:forbidigo // the one door to the machine's clock

// NewTimer is time.NewTimer.
func (Real) NewTimer(d time.Duration) Timer {
	return realTimer{time.NewTimer(d)} //nolint:forbidigo // the one door to the machine's clock
}

// AfterFunc is time.AfterFunc.
func (Real) AfterFunc(d time.Duration, f func()) Timer {
	return realTimer{time.AfterFunc(d, f)}
}

type realTimer struct{ t *time.Timer }

func (r realTimer) C() <-chan time.Time   { return r.t.C }
func (r realTimer) Stop() bool            { return r.t.Stop() }
func (r realTimer) Reset(d time.Duration) { r.t.Reset(d) }

// Virtual is a clock that moves only by Advance. The zero value starts at the
// zero time; use NewVirtual for another start. It is safe for concurrent use.
type Virtual struct {
	mu     sync.Mutex
	now    time.Time
	timers map[*virtualTimer]struct{}
}

// NewVirtual is a virtual clock that shows start.
func NewVirtual(start time.Time) *Virtual { return &Virtual{now: start} }

// Now is the time the clock was last advanced to.
func (v *Virtual) Now() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.now
}

// NewTimer arms a timer d after the virtual now; d ≤ 0 fires at once.
func (v *Virtual) NewTimer(d time.Duration) Timer {
	t := &virtualTimer{clock: v, ch: make(chan time.Time, 1)}
	t.Reset(d)
	return t
}

// AfterFunc arms a timer that calls f from Advance, in Advance's goroutine and
// before it returns; d ≤ 0 waits for the next Advance, be it of zero.
func (v *Virtual) AfterFunc(d time.Duration, f func()) Timer {
	t := &virtualTimer{clock: v, call: f}
	t.Reset(d)
	return t
}

// Advance moves the clock by d and fires what falls due, in order of time.
func (v *Virtual) Advance(d time.Duration) {
	end := v.Now().Add(d)
	for v.fireNext(end) {
	}
}

// fireNext fires the earliest timer due by end. Without one it moves the clock
// to end and reports false. The lock is not held while a function runs: it may
// use the clock.
func (v *Virtual) fireNext(end time.Time) bool {
	v.mu.Lock()
	next := v.earliest(end)
	if next == nil {
		if end.After(v.now) {
			v.now = end
		}
		v.mu.Unlock()
		return false
	}
	if next.at.After(v.now) {
		v.now = next.at
	}
	delete(v.timers, next)
	if next.call == nil {
		next.ch <- v.now
		v.mu.Unlock()
		return true
	}
	v.mu.Unlock()
	next.call()
	return true
}

// Next is the time until the earliest armed timer; ok is false when none is.
func (v *Virtual) Next() (d time.Duration, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for t := range v.timers {
		if left := t.at.Sub(v.now); !ok || left < d {
			d, ok = left, true
		}
	}
	return d, ok
}

func (v *Virtual) earliest(end time.Time) *virtualTimer {
	var first *virtualTimer
	for t := range v.timers {
		if t.at.After(end) || (first != nil && !t.at.Before(first.at)) {
			continue
		}
		first = t
	}
	return first
}

type virtualTimer struct {
	clock *Virtual
	at    time.Time
	ch    chan time.Time // nil when call is set
	call  func()
}

func (t *virtualTimer) C() <-chan time.Time { return t.ch }

func (t *virtualTimer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	return t.disarm()
}

func (t *virtualTimer) disarm() bool {
	_, armed := t.clock.timers[t]
	delete(t.clock.timers, t)
	select {
	case <-t.ch:
	default:
	}
	return armed
}

func (t *virtualTimer) Reset(d time.Duration) {
	v := t.clock
	v.mu.Lock()
	defer v.mu.Unlock()
	t.disarm()
	t.at = v.now.Add(d)
	if d <= 0 && t.call == nil {
		t.ch <- v.now
		return
	}
	if v.timers == nil {
		v.timers = map[*virtualTimer]struct{}{}
	}
	v.timers[t] = struct{}{}
}
