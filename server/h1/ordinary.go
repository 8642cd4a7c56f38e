package h1

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxUnread is how much of a body that its handler left unread is read for the
// sake of the connection, as net/http does.
const maxUnread = 256 << 10

// serveOrdinary serves a request by the handler of the server behind. It reports
// whether another may follow.
func (c *conn) serveOrdinary(head []byte) bool {
	r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head)))
	if err != nil {
		c.handOver() // the server behind says what is wrong
		return false
	}
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	r = r.WithContext(ctx)
	r.RemoteAddr = c.remote
	c.consume(len(head))

	w := &c.response
	w.reset(c)
	a := &reply{w: w, header: http.Header{}, head: r.Method == http.MethodHead}
	a.body = c.openBody(r)
	r.Body = a.body
	if r.Header.Get("Expect") != "" && r.Body != http.NoBody {
		a.asks = true
		r.Body = continuing{a}
	}
	h := c.server.cfg.Behind.Handler
	if h == nil {
		h = http.DefaultServeMux
	}
	if !c.handle(h, a, r) {
		return false
	}
	a.finish()
	return c.after(w)
}

// openBody sets up the reading of r's body and of the connection behind it.
func (c *conn) openBody(r *http.Request) io.ReadCloser {
	q := &c.request
	q.close = r.Close
	q.body = body{c: c, left: max(r.ContentLength, -1)}
	c.wait, c.waiting = noDeadline, false
	switch q.body.left {
	case 0:
		return http.NoBody
	case -1:
		return &chunks{body: &q.body}
	}
	return &q.body
}

// continuing is the body of a client that waits to be asked for it.
type continuing struct{ a *reply }

var goOn = []byte("HTTP/1.1 100 Continue\r\n\r\n")

// Read asks for the body, unless it has been answered without.
func (b continuing) Read(p []byte) (int, error) {
	if b.a.asks && !b.a.begun {
		b.a.asks = false
		if err := b.a.w.goOn(); err != nil {
			return 0, err
		}
	}
	return b.a.body.Read(p)
}

// goOn asks a client to send the body. One that does not take these few bytes has
// as long as one that is refused, where the handler has set no bound of its own.
func (w *response) goOn() error {
	if !w.bounded {
		_ = w.c.raw.SetWriteDeadline(time.Now().Add(lingerTime))
		defer func() { _ = w.c.raw.SetWriteDeadline(noDeadline) }()
	}
	_, err := w.c.raw.Write(goOn)
	return err
}

// Close has nothing to do, see body.
func (continuing) Close() error { return nil }

// held is how many bytes of an answer are held back, for its length to be known
// when it is short.
const held = 4 << 10

// reply is the ResponseWriter of handlers that know of net/http's only: it holds
// the beginning back, states length and type where the handler does not, and
// leaves out the body of an answer to HEAD. Trailers are not sent: who asks for
// them is served behind.
type reply struct {
	w      *response
	header http.Header   // the handler's
	body   io.ReadCloser // the request's
	head   bool          // the request is a HEAD
	asks   bool          // the client waits to be asked for the body

	status int    // 0 before WriteHeader
	text   []byte // held back
	total  int64  // bytes written
	begun  bool   // the head is sent
}

// Header is the response's header, which counts until WriteHeader.
func (a *reply) Header() http.Header { return a.header }

// WriteHeader fixes status and headers. Interim answers are not sent.
func (a *reply) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("h1: a handler answers with status %d", status))
	}
	if a.status != 0 || status < 200 {
		return
	}
	a.status = status
	for name, values := range a.header {
		if isToken(name) && !strings.HasPrefix(name, http.TrailerPrefix) {
			a.w.header[name] = values
		}
	}
	for _, v := range a.header["Connection"] {
		a.w.closing = a.w.closing || strings.EqualFold(strings.TrimSpace(v), "close")
	}
	// The connection is ours.
	for _, name := range []string{"Connection", "Keep-Alive", "Transfer-Encoding", "Trailer", "Date"} {
		delete(a.w.header, name)
	}
	if length := a.w.header["Content-Length"]; length != nil {
		if _, ok := digits([]byte(length[0])); !ok || len(length) > 1 {
			delete(a.w.header, "Content-Length")
		}
	}
}

func isToken(name string) bool {
	for i := range len(name) {
		if !token[name[i]] {
			return false
		}
	}
	return name != ""
}

// bare reports whether the answer has no body by its status.
func (a *reply) bare() bool {
	return a.status == http.StatusNoContent || a.status == http.StatusNotModified
}

// Write sends p, or holds it back.
func (a *reply) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.bare() && len(p) > 0 {
		return 0, http.ErrBodyNotAllowed
	}
	if stated, ok := a.stated(); ok && a.total+int64(len(p)) > stated {
		return 0, http.ErrContentLength
	}
	a.total += int64(len(p))
	if a.begun {
		if a.head {
			return len(p), nil
		}
		return a.w.Write(p)
	}
	if n := held - len(a.text); a.head || len(p) <= n {
		a.text = append(a.text, p[:min(len(p), n)]...)
		return len(p), nil
	}
	if err := a.begin(); err != nil {
		return 0, err
	}
	return a.w.Write(p)
}

// stated is the body's length as the handler states it.
func (a *reply) stated() (int64, bool) {
	length := a.w.header["Content-Length"]
	if len(length) == 0 {
		return 0, false
	}
	return digits([]byte(length[0]))
}

// begin sends the head and what was held back.
func (a *reply) begin() error {
	a.begun = true
	_, typed := a.w.header["Content-Type"]
	if len(a.text) > 0 && !typed && a.w.header["Content-Encoding"] == nil {
		a.w.header["Content-Type"] = []string{http.DetectContentType(a.text)}
	}
	a.w.mute = a.head
	a.w.WriteHeader(a.status)
	if a.head || len(a.text) == 0 {
		return a.w.FlushError()
	}
	text := a.text
	a.text = nil
	_, err := a.w.Write(text)
	return err
}

// FlushError sends what was held back.
func (a *reply) FlushError() error {
	a.WriteHeader(http.StatusOK)
	if !a.begun {
		return a.begin()
	}
	return a.w.FlushError()
}

// Flush is FlushError for those who do not ask.
func (a *reply) Flush() { _ = a.FlushError() }

// SetReadDeadline bounds the reading of the request's body.
func (a *reply) SetReadDeadline(t time.Time) error { return a.w.SetReadDeadline(t) }

// SetWriteDeadline bounds writing.
func (a *reply) SetWriteDeadline(t time.Time) error { return a.w.SetWriteDeadline(t) }

// EnableFullDuplex has nothing to do: a body can be read while an answer is
// written.
func (a *reply) EnableFullDuplex() error { return nil }

// finish sends what was held back of an answer that is whole.
func (a *reply) finish() {
	a.WriteHeader(http.StatusOK)
	if a.begun {
		return
	}
	if _, ok := a.stated(); !ok && !a.bare() && (!a.head || a.total > 0) {
		a.w.header["Content-Length"] = []string{strconv.FormatInt(a.total, 10)}
	}
	a.discard()
	_ = a.begin() // the response keeps the error
}

// discard reads what the handler left of a short body, so that the connection
// can go on.
func (a *reply) discard() {
	q := &a.w.c.request
	if a.asks || a.w.closing || q.close || q.body.failed || q.body.left == 0 || q.body.left > maxUnread {
		return
	}
	_ = a.w.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, a.body, maxUnread+1) // what fails leaves a rest, which ends the connection
}
