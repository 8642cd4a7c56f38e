package server

import (
	"sync"
	"time"
)

// tracker counts running requests. Unlike a WaitGroup it may be entered while
// it is waited for.
type tracker struct {
	mu   sync.Mutex
	n    int
	peak int           // the most at once since forgetPeak
	idle chan struct{} // closed when n returns to 0; nil when nobody waits
}

func (t *tracker) enter() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n++
	t.peak = max(t.peak, t.n)
}

func (t *tracker) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

// level is how many requests run, and how many ran at most.
func (t *tracker) level() (now, peak int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n, t.peak
}

func (t *tracker) forgetPeak() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.peak = t.n
}

// wait returns when no request runs, or after limit.
func (t *tracker) wait(limit time.Duration) {
	t.mu.Lock()
	if t.n == 0 {
		t.mu.Unlock()
		return
	}
	if t.idle == nil {
		t.idle = make(chan struct{})
	}
	idle := t.idle
	t.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	}
}
