package transport

import (
	"errors"
	"io"
	"sync"
	"time"
)

var errTooMuch = errors.New("too much of a refused snapshot is left")

// steadyReader reads a snapshot's body, each piece within stallTimeout and the
// whole by its end.
type steadyReader struct {
	conn *Conn
	end  time.Time

	mu   sync.Mutex // the group may still read when the transport is closed
	from io.Reader
	left int64
	gone bool
}

func (r *steadyReader) Read(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return 0, ErrClosed
	}
	limit := time.Now().Add(r.conn.port.cfg.stall)
	if r.end.Before(limit) {
		limit = r.end
	}
	_ = r.conn.SetReadDeadline(limit)
	n, err := r.from.Read(b)
	r.left -= int64(n)
	return n, err
}

// abandon lets nobody read any more.
func (r *steadyReader) abandon() {
	_ = r.conn.raw.Close() // ends a read that runs
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone = true
}

// drain reads what is left, unless it is too much.
func (r *steadyReader) drain() error {
	r.mu.Lock()
	left := r.left
	r.mu.Unlock()
	if left > drainLimit {
		return errTooMuch
	}
	_, err := io.Copy(io.Discard, r)
	return err
}
