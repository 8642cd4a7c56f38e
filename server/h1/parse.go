package h1

import (
	"bytes"
	"net/http"
	"net/url"
	"strings"
)

// verdict is what is known of the bytes of a request so far.
type verdict uint8

const (
	more     verdict = iota // the head is not whole yet
	plain                   // ours
	ordinary                // for the handler behind, on this connection
	unusual                 // the server behind decides what it is
	refused                 // what the server behind would take, and others read otherwise
	ended                   // the connection is over
)

var (
	blankLine = []byte("\r\n\r\n")
	crlf      = []byte("\r\n")
	post      = []byte("POST ")
	proto     = []byte(" HTTP/1.1")
)

// scan looks for a whole head at the start of b, of which the first seen bytes
// have been looked at before, and judges it. end is the head's length, blank
// line included.
func scan(b []byte, seen int, posts map[string]http.Handler) (end int, v verdict) {
	if !methodLike(b) {
		return 0, unusual
	}
	from := max(seen-len(blankLine)+1, 0)
	at := bytes.Index(b[from:], blankLine)
	if at < 0 {
		if bareLF(b[from:]) {
			return 0, refused
		}
		return 0, more
	}
	end = from + at + len(blankLine)
	switch head := b[:end]; {
	case end <= maxHead && bytes.HasPrefix(head, post) && judge(head, posts):
		return end, plain
	case ambiguous(head):
		return 0, refused
	case end <= maxHead && isOrdinary(head):
		return end, ordinary
	}
	return 0, unusual
}

// methodLike reports whether b can begin a request: other protocols have no head
// to wait for.
func methodLike(b []byte) bool {
	for i, c := range b[:min(len(b), 4)] {
		if (c < 'A' || c > 'Z') && (i == 0 || c != ' ') {
			return false
		}
	}
	return true
}

// ambiguous reports whether a proxy in front may have read a whole head another
// way than the server behind will: with lines that end without a CR, lines that
// go on in the next, or two statements of the body's length (RFC 9112, sections
// 2.2, 5.2 and 6.3).
func ambiguous(head []byte) bool {
	if bareLF(head) {
		return true
	}
	var length, coding bool
	_, rest, _ := bytes.Cut(head, crlf)
	for {
		var line []byte
		if line, rest, _ = bytes.Cut(rest, crlf); len(line) == 0 {
			return length && coding
		}
		if line[0] == ' ' || line[0] == '\t' {
			return true
		}
		name, _, _ := bytes.Cut(line, []byte(":"))
		name = bytes.TrimRight(name, " \t")
		length = length || is(name, "content-length")
		coding = coding || is(name, "transfer-encoding")
	}
}

// bareLF reports whether a line of b ends without a CR. The blank line that ends
// such a head has another form, and would be waited for in vain.
func bareLF(b []byte) bool {
	for i := 0; ; i++ {
		n := bytes.IndexByte(b[i:], '\n')
		if n < 0 {
			return false
		}
		if i += n; i > 0 && b[i-1] != '\r' {
			return true
		}
	}
}

// judge reports whether a whole head is a plain request for one of our routes.
func judge(head []byte, posts map[string]http.Handler) bool {
	line, rest, _ := bytes.Cut(head, crlf)
	target, ok := bytes.CutSuffix(line[len(post):], proto)
	if !ok || posts[string(target)] == nil {
		return false
	}
	f, ok := survey(rest)
	return ok && f.length && !f.chunked && !f.expects
}

// isOrdinary reports whether a whole head is a request that needs nothing of a
// server but that it calls a handler: of HTTP/1.1, to a path of ours, with a body
// whose end can be told, on a connection that stays one of HTTP/1.1.
func isOrdinary(head []byte) bool {
	line, rest, _ := bytes.Cut(head, crlf)
	line, ok := bytes.CutSuffix(line, proto)
	if !ok {
		return false
	}
	method, target, ok := bytes.Cut(line, []byte(" "))
	if !ok || len(method) == 0 || string(method) == http.MethodConnect || len(target) == 0 || target[0] != '/' {
		return false
	}
	for _, c := range method {
		if c < 'A' || c > 'Z' {
			return false
		}
	}
	for _, c := range target {
		if c <= ' ' || c >= 0x7f {
			return false
		}
	}
	_, ok = survey(rest)
	return ok
}

// facts are what a head says of its body and its host.
type facts struct {
	host, length, chunked, expects bool
}

// survey reads the fields of a head. It fails when they are doubtful, or ask for
// something that is not served here.
func survey(rest []byte) (f facts, ok bool) {
	var line []byte
	for {
		line, rest, _ = bytes.Cut(rest, crlf)
		if len(line) == 0 {
			return f, f.host && (!f.length || !f.chunked)
		}
		name, value, ok := field(line)
		if !ok {
			return f, false
		}
		var known *bool // may come once
		switch {
		case is(name, "host"):
			known, ok = &f.host, hostLike(value)
		case is(name, "content-length"):
			known = &f.length
			_, ok = digits(value)
		case is(name, "transfer-encoding"):
			known, ok = &f.chunked, is(value, "chunked")
		case is(name, "expect"):
			known, ok = &f.expects, is(value, "100-continue")
		case is(name, "connection"):
			ok = is(value, "keep-alive") || is(value, "close")
		case is(name, "upgrade"), is(name, "trailer"), is(name, "te"), is(name, "proxy-connection"):
			ok = false
		}
		if !ok || known != nil && *known {
			return f, false
		}
		if known != nil {
			*known = true
		}
	}
}

// field splits a header line. It fails unless the name is a token and the value
// free of control characters.
func field(line []byte) (name, value []byte, ok bool) {
	colon := bytes.IndexByte(line, ':')
	if colon < 1 {
		return nil, nil, false
	}
	name = line[:colon]
	for _, c := range name {
		if !token[c] {
			return nil, nil, false
		}
	}
	value = bytes.Trim(line[colon+1:], " \t")
	for _, c := range value {
		if c < ' ' && c != '\t' || c == 0x7f {
			return nil, nil, false
		}
	}
	return name, value, true
}

// token holds the characters of header names.
var token = func() (t [256]bool) {
	for _, c := range []byte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		t[c] = true
	}
	return t
}()

// is compares b with a lower-case word, whatever b's case.
func is(b []byte, word string) bool {
	if len(b) != len(word) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != word[i] {
			return false
		}
	}
	return true
}

// hostLike accepts host names, addresses and ports.
func hostLike(value []byte) bool {
	for _, c := range value {
		if !token[c] && c != ':' && c != '[' && c != ']' {
			return false
		}
	}
	return len(value) > 0
}

// digits reads a decimal number without sign or space.
func digits(value []byte) (n int64, ok bool) {
	if len(value) == 0 || len(value) > 15 {
		return 0, false
	}
	for _, c := range value {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// request is the memory of a connection's requests, one after the other.
type request struct {
	http   http.Request
	blank  *http.Request // with the connection's context, which no field sets
	header http.Header
	values []string
	url    url.URL
	body   body
	close  bool // the client asked to close after the answer
}

// build makes the request of a head that judge has accepted.
func (q *request) build(c *conn, head []byte) *http.Request {
	text := string(head) // names and values are parts of it
	line, rest, _ := strings.Cut(text, "\r\n")
	target := line[len(post) : len(line)-len(proto)]
	if q.header == nil {
		q.header = make(http.Header, 8) // more than that are slower to clear
	}
	clear(q.header)
	q.values = q.values[:0]
	q.close = false
	q.url = url.URL{Path: target}
	q.body = body{c: c}
	host := ""
	for {
		line, rest, _ = strings.Cut(rest, "\r\n")
		if line == "" {
			break
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.Trim(value, " \t")
		switch name = canonical(name); name {
		case "Host":
			host = value
			continue // as net/http does it
		case "Content-Length":
			q.body.left, _ = digits([]byte(value))
		case "Connection":
			q.close = q.close || strings.EqualFold(value, "close")
		}
		q.add(name, value)
	}
	c.wait, c.waiting = noDeadline, false
	if q.blank == nil {
		q.blank = new(http.Request).WithContext(c.ctx)
	}
	r := &q.http
	*r = *q.blank
	r.Method, r.URL, r.RequestURI = http.MethodPost, &q.url, target
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.1", 1, 1
	r.Header, r.Body, r.ContentLength, r.Close = q.header, &q.body, q.body.left, q.close
	r.Host, r.RemoteAddr = host, c.remote
	if q.body.left == 0 {
		r.Body = http.NoBody
	}
	return r
}

func (q *request) add(name, value string) {
	if old := q.header[name]; old != nil {
		q.header[name] = append(old, value)
		return
	}
	q.values = append(q.values, value)
	n := len(q.values)
	q.header[name] = q.values[n-1 : n : n]
}

// canonical is name in the spelling of http.Header, without memory for the
// names that clients use.
func canonical(name string) string {
	if known, ok := spellings[name]; ok {
		return known
	}
	return http.CanonicalHeaderKey(name)
}

// spellings maps common names, canonical or in lower case, to the canonical.
var spellings = func() map[string]string {
	m := map[string]string{}
	for _, name := range []string{
		"Accept", "Accept-Encoding", "Accept-Language", "Authorization", "Cache-Control", "Connection", "Content-Encoding",
		"Content-Length", "Content-Type", "Cookie", "Host", "Origin", "Referer", "Traceparent", "Tracestate", "User-Agent",
		"X-Forwarded-For", "X-Request-Id", "X-Stainless-Arch", "X-Stainless-Async", "X-Stainless-Lang", "X-Stainless-Os",
		"X-Stainless-Package-Version", "X-Stainless-Read-Timeout", "X-Stainless-Retry-Count", "X-Stainless-Runtime",
		"X-Stainless-Runtime-Version", "X-Stainless-Timeout", "X-Yardmaster-Explain",
	} {
		m[name], m[strings.ToLower(name)] = name, name
	}
	return m
}()
