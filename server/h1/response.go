package h1

import (
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// response is the http.ResponseWriter of one request. What is written goes out
// before Write returns; the head waits for the first Write or Flush.
type response struct {
	c       *conn
	header  http.Header
	status  int   // 0 before WriteHeader
	length  int64 // of the body as stated; -1 is chunked
	sent    int64
	head    bool // still to be sent
	closing bool // the connection ends with this response
	mute    bool // the body is not sent, whatever the head says of it
	bounded bool // a write deadline is set
	err     error
}

func (w *response) reset(c *conn) {
	h := w.header
	if h == nil {
		h = make(http.Header, 8)
	}
	clear(h)
	*w = response{c: c, header: h}
}

// Header is the response's header, to be filled before WriteHeader.
func (w *response) Header() http.Header { return w.header }

// WriteHeader fixes status and headers.
func (w *response) WriteHeader(status int) {
	if w.status != 0 {
		return
	}
	w.status, w.head, w.length = status, true, -1
	switch stated := w.header["Content-Length"]; {
	case w.mute:
		w.length = 0
	case status == http.StatusNoContent || status == http.StatusNotModified:
		w.length = 0
		delete(w.header, "Content-Length")
	case len(stated) > 0:
		if n, ok := digits([]byte(stated[0])); ok {
			w.length = n
		} else {
			delete(w.header, "Content-Length")
		}
	}
	q := &w.c.request
	w.closing = w.closing || q.close || q.body.left != 0 || w.c.server.last.Load()
}

// Write sends p, with the head if it is the first.
func (w *response) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if len(p) == 0 || w.err != nil {
		return 0, w.err
	}
	if w.length >= 0 && w.sent+int64(len(p)) > w.length {
		return 0, http.ErrContentLength
	}
	w.sent += int64(len(p))
	if err := w.send(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// FlushError sends the head if nothing has been sent. Everything else has been.
func (w *response) FlushError() error {
	w.WriteHeader(http.StatusOK)
	if w.head && w.err == nil {
		return w.send(nil)
	}
	return w.err
}

// Flush is FlushError for those who do not ask.
func (w *response) Flush() { _ = w.FlushError() }

// SetReadDeadline bounds the reading of the request's body.
func (w *response) SetReadDeadline(t time.Time) error {
	w.c.wait = t
	if !w.c.waiting {
		return nil
	}
	return w.c.raw.SetReadDeadline(t)
}

// SetWriteDeadline bounds writing.
func (w *response) SetWriteDeadline(t time.Time) error {
	w.bounded = !t.IsZero()
	return w.c.raw.SetWriteDeadline(t)
}

// gather is the longest piece that is copied to leave in one buffer.
const gather = headBuffer - 512

// send writes head and p in one system call.
func (w *response) send(p []byte) error {
	pool := &w.c.server.buffers
	scratch := pool.Get().(*[]byte)
	defer pool.Put(scratch)
	b := (*scratch)[:0]
	if w.head {
		w.head = false
		b = w.appendHead(b)
	}
	tail := ""
	if w.length < 0 && len(p) > 0 {
		b = strconv.AppendUint(b, uint64(len(p)), 16)
		b = append(b, "\r\n"...)
		tail = "\r\n"
	}
	var err error
	if len(p) <= gather {
		b = append(b, p...)
		b = append(b, tail...)
		_, err = w.c.raw.Write(b)
	} else {
		parts := net.Buffers{b, p, []byte(tail)}
		_, err = parts.WriteTo(w.c.raw.TCPConn)
	}
	if err != nil {
		w.err = err
	}
	return err
}

// appendHead encodes status and headers.
func (w *response) appendHead(b []byte) []byte {
	b = append(b, "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(w.status), 10)
	b = append(b, ' ')
	b = append(b, http.StatusText(w.status)...)
	b = append(b, "\r\nDate: "...)
	b = append(b, w.c.server.date()...)
	b = append(b, "\r\n"...)
	for name, values := range w.header {
		for _, v := range values {
			b = append(b, name...)
			b = append(b, ": "...)
			b = appendValue(b, v)
			b = append(b, "\r\n"...)
		}
	}
	if w.length < 0 {
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	}
	if w.closing {
		b = append(b, "Connection: close\r\n"...)
	}
	return append(b, "\r\n"...)
}

// appendValue appends a header's value. A line break in it would begin another
// header.
func appendValue(b []byte, v string) []byte {
	if strings.IndexByte(v, '\n') < 0 && strings.IndexByte(v, '\r') < 0 {
		return append(b, v...)
	}
	for _, c := range []byte(v) {
		if c == '\n' || c == '\r' {
			c = ' '
		}
		b = append(b, c)
	}
	return b
}

// finish ends the response. It reports whether the connection can serve another
// request.
func (w *response) finish() bool {
	if w.status == 0 {
		w.header["Content-Length"] = []string{"0"}
		w.WriteHeader(http.StatusOK)
	}
	if w.head && w.err == nil {
		_ = w.send(nil)
	}
	if w.length < 0 && w.err == nil {
		_, w.err = w.c.raw.Write(lastChunk)
	}
	if w.bounded {
		_ = w.c.raw.SetWriteDeadline(noDeadline)
	}
	return w.err == nil && !w.closing && (w.length < 0 || w.sent == w.length)
}

var lastChunk = []byte("0\r\n\r\n")

// stamp is a formatted date and the second it stands for.
type stamp struct {
	second int64
	text   string
}

// date is the Date header's value, formatted once a second.
func (s *Server) date() string {
	now := time.Now()
	if t := s.today.Load(); t != nil && t.second == now.Unix() {
		return t.text
	}
	t := &stamp{now.Unix(), now.UTC().Format(http.TimeFormat)}
	s.today.Store(t)
	return t.text
}
