package call

import (
	"errors"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/raftstore/transport"
)

const (
	// writeStall is how long a peer may take nothing of what is written to it.
	writeStall = 5 * time.Second
	// maxQueued bounds what waits to be written.
	maxQueued = 16 << 20
	// maxKept bounds the buffers that are kept for what is written next.
	maxKept = 64 << 10
)

var errFull = errors.New("too much waits to be written")

// outbox writes frames to a connection. Whoever comes first writes, so that no
// other goroutine has to be woken, and takes along what others add meanwhile.
type outbox struct {
	conn   *transport.Conn
	tasks  *sync.WaitGroup // those of the connection, held by its reader until fail was called
	broken func(error)     // told that nothing can be written; it must not block or call the outbox

	mu      sync.Mutex
	buf     []byte // to be written next
	spare   []byte
	writing bool
	err     error // nothing is written any more
}

// put takes a frame, which add appends, and has it written: by the caller, if inline
// and nobody else is at it. On an error the frame was not taken; errFull passes.
func (o *outbox) put(add func([]byte) []byte, inline bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.err != nil:
		return o.err
	case len(o.buf) > maxQueued:
		return errFull
	}
	o.buf = add(o.buf)
	if o.writing {
		return nil
	}
	o.writing = true
	if !inline {
		o.tasks.Go(o.flush)
		return nil
	}
	o.write()
	if o.err == nil && len(o.buf) > 0 { // came meanwhile, and is not the caller's affair
		o.tasks.Go(o.flush)
		return nil
	}
	o.writing = false
	return nil
}

// flush writes until nothing is left.
func (o *outbox) flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.err == nil && len(o.buf) > 0 {
		o.write()
	}
	o.writing = false
}

// write writes what there is. The lock is held, but not meanwhile.
func (o *outbox) write() {
	b := o.buf
	o.buf, o.spare = o.spare[:0], nil
	o.mu.Unlock()
	_ = o.conn.SetWriteDeadline(time.Now().Add(writeStall))
	_, err := o.conn.Write(b)
	o.mu.Lock()
	if cap(b) <= maxKept {
		o.spare = b[:0]
	}
	if err != nil && o.err == nil {
		o.err, o.buf = err, nil
		o.broken(err)
	}
}

// fail lets nothing in any more.
func (o *outbox) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err, o.buf = err, nil
	}
}
