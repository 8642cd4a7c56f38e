package dispatch

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/errs"
)

// watchdog cancels a request's context when its present stage takes too long.
// It has one timer and no goroutine. Moving the deadline on, once per event,
// does not touch the timer: when it fires early it looks again.
type watchdog struct {
	clock  clock.Clock
	cancel context.CancelCauseFunc
	timer  clock.Timer

	mu      sync.Mutex
	total   int64 // unix nanoseconds, as are the others
	due     int64 // of the present stage
	left    int64 // of the suspended stage, a duration; 0 when none is
	armed   int64 // when the timer fires
	stage   stage
	stopped bool
}

const never = math.MaxInt64

// watch starts watching; total bounds everything. The caller calls stop.
func watch(ctx context.Context, c clock.Clock, total time.Duration) (context.Context, *watchdog) {
	ctx, cancel := context.WithCancelCause(ctx)
	end := c.Now().Add(total).UnixNano()
	w := &watchdog{clock: c, cancel: cancel, total: end, due: never, armed: end}
	w.mu.Lock() // the timer may fire before the field is set
	w.timer = c.AfterFunc(total, w.fire)
	w.mu.Unlock()
	return ctx, w
}

// expect begins a stage that may take d; when it takes longer the context is
// cancelled with the stage's error as its cause.
func (w *watchdog) expect(now time.Time, d time.Duration, s stage) {
	due := now.Add(d).UnixNano()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.due, w.stage = due, s
	w.rearm(d)
}

// rearm makes the timer fire in d, when the stage is over, unless it fires
// before anyway. The caller holds the lock.
func (w *watchdog) rearm(d time.Duration) {
	if w.due < w.armed && !w.stopped {
		w.armed = w.due
		w.timer.Reset(d)
	}
}

// rest ends the stage: nothing is asked of an engine at the moment.
func (w *watchdog) rest() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.due, w.left = never, 0
}

// pause suspends the stage: what is waited for now is not the engine.
func (w *watchdog) pause(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = 0
	if w.due != never {
		w.left = max(w.due-now.UnixNano(), 1)
		w.due = never
	}
}

// resume goes on with the stage, with the time it had left.
func (w *watchdog) resume(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left == 0 {
		return
	}
	w.due = now.UnixNano() + w.left
	w.rearm(time.Duration(w.left))
}

// stop ends the watch and releases the context.
func (w *watchdog) stop() {
	w.mu.Lock()
	w.stopped = true
	w.mu.Unlock()
	w.timer.Stop()
	w.cancel(context.Canceled)
}

func (w *watchdog) fire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	now := w.clock.Now().UnixNano()
	switch {
	case now >= w.due:
		w.cancel(w.stage.late())
	case now >= w.total:
		w.cancel(stageTotal.late())
	default:
		w.armed = min(w.due, w.total)
		w.timer.Reset(time.Duration(w.armed - now))
	}
}

// stage is a part of a request's life that has a deadline of its own.
type stage uint8

const (
	stageTotal stage = iota
	stageHeader
	stageFirstToken
	stageIdle
)

// late is the error of a stage that took too long.
func (s stage) late() *errs.Error {
	e := &errs.Error{Kind: errs.Timeout}
	switch s {
	case stageHeader:
		e.Client, e.Code = "the engine did not answer in time", "header_timeout"
	case stageFirstToken:
		e.Client, e.Code = "the engine did not produce a first token in time", "first_token_timeout"
	case stageIdle:
		e.Client, e.Code = "the engine stopped producing tokens", "idle_timeout"
	case stageTotal:
		e.Client, e.Code = "the request took longer than it may", "total_timeout"
	}
	return e
}
