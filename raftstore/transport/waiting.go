package transport

import (
	"container/list"
	"context"
	"net"
	"sync"
	"time"
)

const (
	// patience is how long a handshake is left alone when others wait for its
	// place. An honest one takes milliseconds.
	patience = time.Second
	// lookEvery is how often a caller that waits for a place looks for somebody
	// to push out.
	lookEvery = 50 * time.Millisecond
)

// waiting is the connections whose handshake runs, oldest first. They are
// bounded, and strangers who never finish lose their places to newcomers.
type waiting struct {
	slots chan struct{}

	mu     sync.Mutex
	queue  list.List // of *handshake
	closed bool
}

type handshake struct {
	raw   net.Conn
	began time.Time
	place *list.Element // nil once pushed out
}

// enter waits for a place. It reports false when ctx ended.
func (w *waiting) enter(ctx context.Context, raw net.Conn) (*handshake, bool) {
	select {
	case w.slots <- struct{}{}:
		return w.add(raw)
	default:
	}
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		w.pushOut()
		select {
		case w.slots <- struct{}{}:
			return w.add(raw)
		case <-look.C:
		case <-ctx.Done():
			return nil, false
		}
	}
}

func (w *waiting) add(raw net.Conn) (*handshake, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		<-w.slots
		return nil, false
	}
	h := &handshake{raw: raw, began: time.Now()}
	h.place = w.queue.PushBack(h)
	return h, true
}

// pushOut ends the handshakes that have had their time.
func (w *waiting) pushOut() {
	limit := time.Now().Add(-patience)
	w.mu.Lock()
	defer w.mu.Unlock()
	for e := w.queue.Front(); e != nil; e = w.queue.Front() {
		h, _ := e.Value.(*handshake)
		if h.began.After(limit) {
			return
		}
		w.queue.Remove(e)
		h.place = nil
		_ = h.raw.Close() // its goroutine leaves
	}
}

// leave gives the place back.
func (w *waiting) leave(h *handshake) {
	w.mu.Lock()
	if h.place != nil {
		w.queue.Remove(h.place)
		h.place = nil
	}
	w.mu.Unlock()
	<-w.slots
}

// abort ends all handshakes and lets nobody in any more.
func (w *waiting) abort() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for e := w.queue.Front(); e != nil; e = e.Next() {
		h, _ := e.Value.(*handshake)
		_ = h.raw.Close()
	}
}
