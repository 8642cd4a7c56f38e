package h1

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

const (
	headBuffer = 4 << 10  // for a request's head and what comes with it
	slop       = 4 << 10  // net/http's, beyond MaxHeaderBytes
	maxHead    = 32 << 10 // longer heads are not plain
)

var noDeadline time.Time

// state is what a shutdown may do to a connection.
type state = int32

const (
	fresh  state = iota // no byte yet
	idle                // between two requests
	active              // a request is being read or answered
	over                // closed
	given               // handed over
)

// conn is one client connection, served by one goroutine.
type conn struct {
	server   *Server
	watcher  *watcher
	raw      *socket
	id       uint64 // the watcher's
	accepted time.Time
	state    atomic.Int32
	ctx      context.Context //nolint:containedctx // the life of the connection
	gone     context.CancelFunc

	remote   string
	buf      *[]byte // held while a head is read, given back while handlers run
	from, to int     // bytes of buf that are read and not consumed
	// wait is the deadline that the handler set for reading the body. It touches
	// the connection when a read has to wait at all.
	wait    time.Time
	waiting bool

	request  request
	response response
}

func newConn(s *Server, w *watcher, raw *net.TCPConn) *conn {
	c := &conn{server: s, watcher: w, raw: newSocket(raw), accepted: time.Now(), remote: raw.RemoteAddr().String()}
	c.ctx, c.gone = context.WithCancel(s.cfg.Base)
	return c
}

// run serves requests until the connection ends or is handed over.
func (c *conn) run() {
	defer c.server.leave(c)
	defer c.gone()
	defer c.cut()
	defer c.release()
	defer c.watcher.drop(c)
	if !c.watcher.add(c, c.raw.TCPConn) {
		c.handOver()
		return
	}
	for c.next() {
	}
}

// next serves one request. It reports whether another may follow.
func (c *conn) next() bool {
	head, verdict := c.readHead()
	switch verdict {
	case plain:
	case ordinary:
		return c.serveOrdinary(head)
	case unusual:
		c.handOver()
		return false
	case refused:
		c.refuse()
		return false
	case ended, more: // readHead asks for more itself
		return false
	}
	r := c.request.build(c, head)
	c.consume(len(head))
	w := &c.response
	w.reset(c)
	if !c.handle(c.server.cfg.Posts[r.URL.Path], w, r) {
		return false
	}
	return c.after(w)
}

// consume drops n bytes that were read.
func (c *conn) consume(n int) {
	if c.from += n; c.from == c.to {
		c.release()
	}
}

// after ends a request that was handled. It reports whether another may follow.
func (c *conn) after(w *response) bool {
	if !w.finish() {
		c.linger()
		return false
	}
	return c.state.CompareAndSwap(active, idle)
}

// handle runs the handler. A panic means that the connection must be cut; only
// http.ErrAbortHandler is expected of handlers here.
func (c *conn) handle(h http.Handler, w http.ResponseWriter, r *http.Request) (whole bool) {
	defer func() {
		if v := recover(); v != nil {
			whole = false
			if log := c.server.cfg.Behind.ErrorLog; v != http.ErrAbortHandler && log != nil { //nolint:errorlint // net/http compares it so as well
				log.Printf("a handler panicked: %v", v)
			}
		}
	}()
	h.ServeHTTP(w, r)
	return true
}

// readHead waits for a request and returns its head, blank line included. The
// bytes stay in buf.
func (c *conn) readHead() ([]byte, verdict) {
	started := c.from < c.to // it came with the last one
	if started && !c.begin() {
		return nil, ended
	}
	if !started {
		wait := c.server.cfg.ReadHeader
		if c.state.Load() == idle {
			wait = c.server.cfg.Idle
		}
		_ = c.raw.SetReadDeadline(time.Now().Add(wait))
	}
	for seen := 0; ; {
		if n := c.to - c.from; n > seen {
			end, v := scan((*c.buf)[c.from:c.to], seen, c.server.cfg.Posts)
			if v != more {
				return (*c.buf)[c.from : c.from+end], v
			}
			if seen == 0 { // a head that comes in pieces has a time limit
				_ = c.raw.SetReadDeadline(time.Now().Add(c.server.cfg.ReadHeader))
			}
			seen = n
		}
		if !c.room() {
			return nil, unusual
		}
		n, _ := c.raw.Read((*c.buf)[c.to:])
		if n == 0 {
			return nil, ended
		}
		c.to += n
		if !started {
			if started = true; !c.begin() {
				return nil, ended
			}
		}
	}
}

// begin marks the connection as busy, unless a shutdown was faster.
func (c *conn) begin() bool {
	return c.state.CompareAndSwap(fresh, active) || c.state.CompareAndSwap(idle, active)
}

// room makes room in buf for more of a head. It reports false when that would
// be too long.
func (c *conn) room() bool {
	if c.buf == nil {
		c.buf = c.server.buffers.Get().(*[]byte)
		c.from, c.to = 0, 0
	}
	if c.from > 0 {
		c.to = copy(*c.buf, (*c.buf)[c.from:c.to])
		c.from = 0
	}
	if c.to < len(*c.buf) {
		return true
	}
	longest := c.server.cfg.Behind.MaxHeaderBytes
	if longest <= 0 {
		longest = http.DefaultMaxHeaderBytes
	}
	if len(*c.buf) >= longest+slop {
		return false // the server behind says so
	}
	grown := make([]byte, 2*len(*c.buf))
	copy(grown, *c.buf)
	c.buf = &grown
	return true
}

// release gives the buffer back.
func (c *conn) release() {
	if c.buf != nil && len(*c.buf) == headBuffer {
		c.server.buffers.Put(c.buf)
	}
	c.buf, c.from, c.to = nil, 0, 0
}

// handOver gives the connection, with what was read of it, to the server behind.
func (c *conn) handOver() {
	if !c.state.CompareAndSwap(active, given) && !c.state.CompareAndSwap(fresh, given) {
		return
	}
	c.watcher.drop(c)
	_ = c.raw.SetReadDeadline(noDeadline)
	var rest []byte
	if c.buf != nil {
		rest = append(rest, (*c.buf)[c.from:c.to]...)
	}
	c.server.behind.pass(&handed{TCPConn: c.raw.TCPConn, rest: rest})
}

// closeIfIdle closes the connection when no request is under way.
func (c *conn) closeIfIdle() bool {
	unusedLong := c.state.Load() == fresh && time.Since(c.accepted) > unused
	if c.state.CompareAndSwap(idle, over) || unusedLong && c.state.CompareAndSwap(fresh, over) {
		_ = c.raw.Close()
		return true
	}
	return false
}

// cut ends the connection whatever it is doing, unless it was handed over.
func (c *conn) cut() {
	for {
		now := c.state.Load()
		if now == over || now == given {
			return
		}
		if c.state.CompareAndSwap(now, over) {
			_ = c.raw.Close()
			return
		}
	}
}

// Lingering bounds for a body that nobody wanted.
const (
	lingerTime  = 2 * time.Second
	lingerBytes = 256 << 20
)

// linger lets the client finish its body, which is thrown away: closed at once,
// the connection would be reset and the answer lost with it.
func (c *conn) linger() {
	if c.request.body.left == 0 {
		return
	}
	c.drain()
}

// refuse answers a head that nobody should have to interpret.
func (c *conn) refuse() {
	_ = c.raw.SetWriteDeadline(time.Now().Add(lingerTime))
	if _, err := c.raw.Write(refusal); err == nil {
		c.drain()
	}
}

var refusal = []byte("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n" +
	"400 Bad Request: a header line is folded or ends without CR, or the body's length is stated twice")

func (c *conn) drain() {
	_ = c.raw.CloseWrite()
	_ = c.raw.SetReadDeadline(time.Now().Add(lingerTime))
	scratch := c.server.buffers.Get().(*[]byte)
	defer c.server.buffers.Put(scratch)
	for total := 0; total < lingerBytes && c.ctx.Err() == nil; {
		n, err := c.raw.Read(*scratch)
		if total += n; err != nil {
			return
		}
	}
}
