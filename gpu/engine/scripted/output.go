package scripted

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"time"
)

// errCut means that the script broke the response off, errClosed that it ended
// it there as if complete.
var (
	errCut    = errors.New("scripted: response cut")
	errClosed = errors.New("scripted: response ended early")
)

// output writes one response as the action says: in pieces, up to the cut.
type output struct {
	x       *exchange
	control *http.ResponseController
	conn    net.Conn // once hijacked
	watch   chan struct{}
	sent    int    // body bytes; of a hijacked connection, all bytes
	held    []byte // bytes waiting for their piece to fill
	piece   int    // index of the next piece size
}

// header sets the status; it leaves with the first byte of the body, or at once
// by flush.
func (o *output) header(status int) {
	o.x.engine().record.update(o.x.rec, func(r *Record) {
		r.Status, r.Answered = status, o.x.engine().opts.Clock.Now()
	})
	o.x.w.WriteHeader(status)
}

// write sends p, all of it unless the response is split or cut.
func (o *output) write(p []byte) error {
	split := o.x.act.Split
	if len(split) == 0 {
		return o.emit(p)
	}
	o.held = append(o.held, p...)
	for {
		size := split[min(o.piece, len(split)-1)]
		if len(o.held) < size {
			return nil
		}
		if err := o.emitPiece(size); err != nil {
			return err
		}
	}
}

func (o *output) emitPiece(size int) error {
	if o.piece > 0 && !o.x.sleep(o.x.act.Gap.D()) {
		return o.x.ctx.Err()
	}
	o.piece++
	p := o.held[:size]
	o.held = o.held[size:]
	return o.emit(p)
}

// end sends what is held back and performs a cut after the last byte.
func (o *output) end() error {
	if len(o.held) > 0 {
		if err := o.emitPiece(len(o.held)); err != nil {
			return err
		}
	}
	if c := o.x.act.Cut; c != nil && c.At == nil {
		return o.cut(c)
	}
	return nil
}

// emit sends p up to the cut.
func (o *output) emit(p []byte) error {
	c := o.x.act.Cut
	if c == nil || c.At == nil || o.sent+len(p) < *c.At {
		return o.put(p)
	}
	if err := o.put(p[:*c.At-o.sent]); err != nil {
		return err
	}
	return o.cut(c)
}

// put writes p to the client and flushes it.
func (o *output) put(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	if err := o.x.ctx.Err(); err != nil {
		return err
	}
	o.sent += len(p)
	o.x.engine().record.update(o.x.rec, func(r *Record) { r.Sent = o.sent })
	deadline := time.Now().Add(writeTimeout)
	if o.conn != nil {
		_ = o.conn.SetWriteDeadline(deadline)
		_, err := o.conn.Write(p)
		return err
	}
	_ = o.control.SetWriteDeadline(deadline)
	if _, err := o.x.w.Write(p); err != nil {
		return err
	}
	return o.flush()
}

func (o *output) flush() error { return o.control.Flush() }

// cut ends the response as c says. It never returns nil.
func (o *output) cut(c *Cut) error {
	switch c.How {
	case "end":
		if o.conn != nil {
			o.close()
		}
		return errClosed
	case "hang":
		if err := o.silence(c.For.D()); err != nil {
			return err
		}
		fallthrough
	case "close":
		if err := o.hijack(); err != nil {
			return err
		}
		o.close()
	default:
		if err := o.hijack(); err != nil {
			return err
		}
		reset(o.conn)
	}
	return errCut
}

// silence waits for d, or for the client to leave when d is zero.
func (o *output) silence(d time.Duration) error {
	if d <= 0 {
		<-o.x.ctx.Done()
	} else if o.x.sleep(d) {
		return nil
	}
	return o.x.ctx.Err()
}

// hijack takes the connection from the HTTP server; from then on writes are raw
// and a goroutine watches for the client to leave.
func (o *output) hijack() error {
	if o.conn != nil {
		return nil
	}
	conn, _, err := o.control.Hijack()
	if err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Time{})
	o.conn, o.watch = conn, make(chan struct{})
	go func() {
		defer close(o.watch)
		_, _ = io.Copy(io.Discard, conn) // ends when either side closes
		o.x.cancel()
	}()
	stop := context.AfterFunc(o.x.inc.ctx, func() { reset(conn) })
	o.x.after = append(o.x.after, func() { stop() })
	return nil
}

// close ends a hijacked connection in order: FIN.
func (o *output) close() { _ = o.conn.Close() }

// release frees what a hijack took. The connection is closed by then or is
// closed here.
func (o *output) release() {
	if o.conn == nil {
		return
	}
	o.close()
	<-o.watch
	o.x.inc.forget(o.conn)
}

// silent is a logger for net/http, whose complaints are about what scripts do on
// purpose.
func silent() *log.Logger { return log.New(io.Discard, "", 0) }
