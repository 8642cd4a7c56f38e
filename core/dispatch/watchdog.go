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
	expired *errs.Error
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
// cancelled with the cause late.
func (w *watchdog) expect(now time.Time, d time.Duration, late *errs.Error) {
	due := now.Add(d).UnixNano()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.due, w.expired = due, late
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

// pause suspends the stage: what is waited for now is not the engine.
func (w *watchdog) pause() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = 0
	if w.due != never {
		w.left = max(w.due-w.clock.Now().UnixNano(), 1)
		w.due = never
	}
}

// resume goes on with the stage, with the time it had left.
func (w *watchdog) resume() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left == 0 {
		return
	}
	w.due = w.clock.Now().UnixNano() + w.left
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
		w.cancel(w.expired)
	case now >= w.total:
		w.cancel(lateTotal())
	default:
		w.armed = min(w.due, w.total)
		w.timer.Reset(time.Duration(w.armed - now))
	}
}

func lateTotal() *errs.Error {
	return &errs.Error{Kind: errs.Timeout, Client: "the request took longer than it may", Code: "total_timeout"}
}

func lateHeader() *errs.Error {
	return &errs.Error{Kind: errs.Timeout, Client: "the engine did not answer in time", Code: "header_timeout"}
}

func lateToken() *errs.Error {
	return &errs.Error{Kind: errs.Timeout, Client: "the engine did not produce a first token in time", Code: "first_token_timeout"}
}

func lateIdle() *errs.Error {
	return &errs.Error{Kind: errs.Timeout, Client: "the engine stopped producing tokens", Code: "idle_timeout"}
}
