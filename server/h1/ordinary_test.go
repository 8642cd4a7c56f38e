//go:build linux

package h1

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Requests of every kind follow each other on one connection, one by one or all
// at once.
func TestOrdinaryKeepsTheConnection(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		_, _ = fmt.Fprintf(w, "%s %s %s", req.Method, req.RequestURI, b)
	})
	const chunked = " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
	requests := []struct{ text, want string }{
		{"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", "GET /v1/models "},
		{wire("plain"), "POST /fast plain"},
		{"HEAD /livez HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n", ""},
		{"POST /other?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nok", "POST /other?a=b ok"},
		{"DELETE /it HTTP/1.1\r\nhost: x\r\nKeep-Alive: timeout=5\r\n\r\n", "DELETE /it "},
		{"POST /fast" + chunked + "3;x=\"y\"\r\nabc\r\nA\r\n0123456789\r\n0\r\nX-Trailer: y\r\n\r\n", "POST /fast abc0123456789"},
		{"POST /fast HTTP/1.1\r\nHost: x\r\n\r\n", "POST /fast "},
		{"PUT /other" + chunked + "0\r\n\r\n", "PUT /other "},
		{"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", "GET / hello"},
	}
	for _, pipelined := range []bool{false, true} {
		c, in := r.dial()
		if pipelined {
			var all strings.Builder
			for _, q := range requests {
				all.WriteString(q.text)
			}
			_, _ = io.WriteString(c, all.String())
		}
		for _, q := range requests {
			if !pipelined {
				_, _ = io.WriteString(c, q.text)
			}
			method, _, _ := strings.Cut(q.text, " ")
			resp, err := http.ReadResponse(in, &http.Request{Method: method})
			if err != nil {
				t.Fatalf("%q: %v", q.text, err)
			}
			got, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || string(got) != q.want || resp.Close {
				t.Fatalf("%q: %q %v, close %v", q.text, got, err, resp.Close)
			}
		}
	}
	if n := r.behind.Load(); n != 0 {
		t.Errorf("%d requests went behind", n)
	}
}

// Split at any byte, an ordinary request is the same.
func TestOrdinarySplit(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(w, req.Body)
	})
	c, in := r.dial()
	for _, text := range []string{
		"PUT /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2 ; e\r\nde\r\n0\r\nX: y\r\n\r\n",
		"PUT /x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabcde",
	} {
		for i := 1; i < len(text); i++ {
			_, _ = io.WriteString(c, text[:i])
			time.Sleep(200 * time.Microsecond)
			_, _ = io.WriteString(c, text[i:])
			if resp, got := answer(t, in); got != "abcde" || resp.Close {
				t.Fatalf("split at %d: %q, close %v", i, got, resp.Close)
			}
		}
	}
}

// handlers do what handlers of net/http may do.
var handlers = map[string]http.HandlerFunc{
	"/nothing": func(http.ResponseWriter, *http.Request) {},
	"/short":   func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
	"/json": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		w.Header().Set("X-Late", "yes")
		_, _ = io.WriteString(w, "{}")
	},
	"/long": func(w http.ResponseWriter, _ *http.Request) {
		for range 100 {
			_, _ = io.WriteString(w, strings.Repeat("long ", 100))
		}
	},
	"/stated": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "6")
		_, _ = io.WriteString(w, "stated")
		if _, err := io.WriteString(w, "more"); !errors.Is(err, http.ErrContentLength) {
			panic(err)
		}
	},
	"/flushed": func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "one")
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, "two")
	},
	"/status": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) },
	"/empty": func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
		if _, err := io.WriteString(w, "text"); !errors.Is(err, http.ErrBodyNotAllowed) {
			panic(err)
		}
	},
	"/same":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) },
	"/early": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusEarlyHints) },
	"/bye":   func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") },
	"/error": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusBadRequest) },
	"/bad":   func(w http.ResponseWriter, _ *http.Request) { w.Header()["X Y"] = []string{"z"} },
	"/untyped": func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = nil
		_, _ = w.Write([]byte("x"))
	},
	"/echo": func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) },
	"/host": func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		_, _ = fmt.Fprint(w, r.Host, r.URL, r.Form, r.Proto, r.ContentLength, r.TransferEncoding, r.Close, len(r.Header))
	},
	"/cookies": func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "a", Value: "b"})
		http.SetCookie(w, &http.Cookie{Name: "c", Value: "d"})
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	},
	"/panic": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	"/short-of": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
		_, _ = io.WriteString(w, "five.")
	},
}

// A client cannot tell an ordinary request from one that net/http served.
func TestOrdinaryIsAsNetHTTP(t *testing.T) {
	all := func(w http.ResponseWriter, r *http.Request) { handlers[r.URL.Path](w, r) }
	ours := newRig(t, all)
	theirs := httptest.NewServer(http.HandlerFunc(all))
	defer theirs.Close()
	type seen struct {
		Status int
		Header http.Header
		Length int64
		Coding []string
		Close  bool
		Body   string
		Failed bool
	}
	ask := func(addr, text, method string) seen {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() //nolint:errcheck // the end
		_ = c.SetDeadline(time.Now().Add(soon))
		_, _ = io.WriteString(c, text)
		in := bufio.NewReader(c)
		resp, err := http.ReadResponse(in, &http.Request{Method: method})
		for err == nil && resp.StatusCode < 200 {
			resp, err = http.ReadResponse(in, &http.Request{Method: method})
		}
		if err != nil {
			return seen{Failed: true}
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.Header.Get("Date") == "" {
			t.Errorf("%s: no date", text)
		}
		resp.Header.Del("Date")
		return seen{resp.StatusCode, resp.Header, resp.ContentLength, resp.TransferEncoding, resp.Close, string(b), err != nil}
	}
	for path := range handlers {
		for name, text := range map[string]string{
			"GET":     "GET %s?a=b&c HTTP/1.1\r\nHost: x\r\n\r\n",
			"HEAD":    "HEAD %s HTTP/1.1\r\nHost: x\r\n\r\n",
			"last":    "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
			"POST":    "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody",
			"chunked": "PUT %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
			"unread":  "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 70000\r\n\r\n" + strings.Repeat("x", 70000),
			"DELETE":  "DELETE %s HTTP/1.1\r\nHost: x\r\n\r\n",
		} {
			if path == "/long" && name == "HEAD" || path == "/echo" && name == "unread" {
				continue // we count to the end, and do not lose what a handler reads while it writes
			}
			text, method := fmt.Sprintf(text, path), strings.Fields(text)[0]
			want, got := ask(theirs.Listener.Addr().String(), text, method), ask(ours.addr, text, method)
			if path == "/flushed" || path == "/long" {
				want.Close, got.Close = false, false // they read the body before they send the head, and we do not
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s %s: %s", name, path, d)
			}
		}
	}
	if n := ours.behind.Load(); n != 0 {
		t.Errorf("%d requests went behind", n)
	}
}

// A client that waits to be asked for its body is asked when the handler reads,
// and not when it does not.
func TestExpect(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/refused" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		b, _ := io.ReadAll(req.Body)
		_, _ = w.Write(b)
	})
	c, in := r.dial()
	for _, path := range []string{"/fast", "/other"} {
		for _, framing := range []struct{ head, body string }{
			{"Content-Length: 4", "body"},
			{"Transfer-Encoding: chunked", "4\r\nbody\r\n0\r\n\r\n"},
		} {
			_, _ = io.WriteString(c, "POST "+path+" HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"+framing.head+"\r\n\r\n")
			if resp, _ := answer(t, in); resp.StatusCode != http.StatusContinue {
				t.Fatalf("%s: %d", path, resp.StatusCode)
			}
			_, _ = io.WriteString(c, framing.body)
			if resp, got := answer(t, in); got != "body" || resp.Close {
				t.Fatalf("%s: %q, close %v", path, got, resp.Close)
			}
		}
	}
	_, _ = io.WriteString(c, "POST /refused HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
	if resp, _ := answer(t, in); resp.StatusCode != http.StatusForbidden || !resp.Close {
		t.Errorf("%d, close %v", resp.StatusCode, resp.Close)
	}
}

// A body that the handler did not want costs the connection only when it is long.
func TestUnreadBody(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) })
	for size, kept := range map[int]bool{1: true, maxUnread: true, maxUnread + 1: false, 8 << 20: false} {
		c, in := r.dial()
		_, _ = fmt.Fprintf(c, "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", size)
		time.Sleep(time.Millisecond)
		_, _ = io.WriteString(c, strings.Repeat("x", size))
		if resp, _ := answer(t, in); resp.StatusCode != 404 || resp.Close == kept {
			t.Errorf("%d bytes: %d, close %v", size, resp.StatusCode, resp.Close)
		}
	}
}

// The context of an ordinary request ends when the client leaves, and with the
// request.
func TestOrdinaryContext(t *testing.T) {
	began, gone := make(chan *http.Request, 1), make(chan bool)
	r := newRig(t, func(_ http.ResponseWriter, req *http.Request) {
		began <- req
		if req.URL.Path == "/wait" {
			<-req.Context().Done()
			close(gone)
		}
	})
	c, in := r.dial()
	_, _ = io.WriteString(c, "GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
	answer(t, in)
	for _, done := range []<-chan struct{}{(<-began).Context().Done()} {
		select {
		case <-done:
		case <-time.After(soon):
			t.Error("the context goes on after the request")
		}
	}
	_, _ = io.WriteString(c, "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
	<-began
	_ = c.Close()
	select {
	case <-gone:
	case <-time.After(soon):
		t.Error("nobody told the handler")
	}
}

// A shutdown waits for ordinary requests and tells their clients that it was the
// last.
func TestOrdinaryShutdown(t *testing.T) {
	began, release := make(chan bool), make(chan bool)
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
		began <- true
		<-release
		_, _ = io.WriteString(w, "late")
	})
	c, in := r.dial()
	_, _ = io.WriteString(c, "GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
	<-began
	ended := make(chan error)
	go func() { ended <- r.server.Shutdown(t.Context()) }()
	for !r.server.closing.Load() {
		time.Sleep(time.Millisecond)
	}
	close(release)
	if resp, got := answer(t, in); got != "late" || !resp.Close {
		t.Errorf("%q, close %v", got, resp.Close)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Malformed chunks end the connection, and nothing that follows them is taken for
// a request.
func TestMalformedChunks(t *testing.T) {
	asked := make(chan string, 2)
	r := newRig(t, func(w http.ResponseWriter, req *http.Request) {
		asked <- req.URL.Path
		if _, err := io.ReadAll(req.Body); err == nil {
			t.Error("the body was taken")
		}
		w.WriteHeader(http.StatusBadRequest)
	})
	for _, chunks := range []string{
		"3\nabc\r\n0\r\n\r\n", "3\r\nabc\n0\r\n\r\n", "3\r\nabcd\r\n0\r\n\r\n", "-1\r\n", "+3\r\nabc\r\n0\r\n\r\n", "0x3\r\nabc\r\n0\r\n\r\n",
		" 3\r\nabc\r\n0\r\n\r\n", "\r\n", "3;" + strings.Repeat("x", 3*maxChunkLine) + "\r\nabc\r\n0\r\n\r\n", "7fffffffffffffff\r\n", "3_0\r\n",
		"3;\r x\r\nabc\r\n0\r\n\r\n", "0\r\nX: y\n\r\n", "0\r\n" + strings.Repeat("X: y\r\n", maxTrailer) + "\r\n", "ffffffffffffffffff\r\n",
	} {
		c, in := r.dial()
		_, _ = io.WriteString(c, "POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"+chunks+"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
		if resp, _ := answer(t, in); resp.StatusCode != http.StatusBadRequest || !resp.Close {
			t.Errorf("%.40q: %d, close %v", chunks, resp.StatusCode, resp.Close)
		}
		if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("%.40q: the connection goes on: %v", chunks, err)
		}
		if path := <-asked; path != "/x" || len(asked) > 0 {
			t.Errorf("%.40q: %s was asked for, and %d more", chunks, path, len(asked))
		}
	}
}

// FuzzChunks holds that a chunked body which is taken means the same to net/http
// and ends at the same byte.
func FuzzChunks(f *testing.F) {
	for _, s := range []string{
		"3\r\nabc\r\n0\r\n\r\nGET /", "3;x=y\r\nabc\r\n2 \r\nde\r\n0\r\nX: y\r\n\r\n", "0\r\n\r\n", "00\r\nX\r\n\r\n", "a\r\n0123456789\r\n0\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	server := New(Config{Behind: &http.Server{}, Base: f.Context()})
	f.Fuzz(func(t *testing.T, text []byte) {
		all := bytes.Clone(text)
		c := &conn{server: server, raw: newSocket(new(net.TCPConn)), buf: &all, to: len(all)} // a connection that has ended
		c.request.body = body{c: c, left: -1}
		got, err := io.ReadAll(&chunks{body: &c.request.body})
		if err != nil {
			if c.request.body.left != -1 {
				t.Fatal("it ended and failed")
			}
			return
		}
		var rest []byte
		if c.buf != nil {
			rest = (*c.buf)[c.from:c.to]
		}
		in := bufio.NewReader(io.MultiReader(strings.NewReader("PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"), bytes.NewReader(text)))
		r, err := http.ReadRequest(in)
		if err != nil {
			t.Fatal(err)
		}
		want, err := io.ReadAll(r.Body)
		if err != nil || string(want) != string(got) {
			t.Fatalf("%q: %q, net/http %q %v", text, got, want, err)
		}
		if after, _ := io.ReadAll(in); string(after) != string(rest) {
			t.Fatalf("%q: %q is left, net/http has %q", text, rest, after)
		}
	})
}
