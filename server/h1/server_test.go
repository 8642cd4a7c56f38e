//go:build linux

package h1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// soon is how long a test waits for what must happen.
const soon = 10 * time.Second

// rig is a server whose /fast is served by the fast way and all else by the
// handler behind.
type rig struct {
	t      *testing.T
	server *Server
	addr   string
	behind atomic.Int64 // requests that net/http served, to the end of their connections
	served chan error
}

func newRig(t *testing.T, fast http.HandlerFunc) *rig {
	t.Helper()
	r := &rig{t: t, served: make(chan error, 1)}
	behind := &http.Server{
		ReadHeaderTimeout: soon,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.Context().Value(http.ServerContextKey) != nil {
				r.behind.Add(1)
			}
			fast(w, req)
		}),
	}
	r.server = New(Config{Posts: map[string]http.Handler{"/fast": fast}, Behind: behind, Base: context.Background()})
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = l.Addr().String()
	go func() { r.served <- r.server.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		if err := r.server.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		_ = r.server.Close()
		if err := <-r.served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve: %v", err)
		}
	})
	return r
}

func (r *rig) dial() (net.Conn, *bufio.Reader) {
	r.t.Helper()
	c, err := (&net.Dialer{}).DialContext(r.t.Context(), "tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(soon))
	r.t.Cleanup(func() { _ = c.Close() })
	return c, bufio.NewReader(c)
}

// head is what a response says before its body.
type head struct {
	StatusCode int
	Header     http.Header
	Close      bool
}

// answer reads one response.
func answer(t *testing.T, in *bufio.Reader) (head, string) {
	t.Helper()
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	return head{resp.StatusCode, resp.Header, resp.Close}, string(b)
}

func wire(body string, headers ...string) string {
	head := "POST /fast HTTP/1.1\r\nHost: x\r\n"
	if len(headers) > 0 {
		head += strings.Join(headers, "\r\n") + "\r\n"
	}
	return fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(body), body)
}

// echo answers whole, with what it was sent.
func echo(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	w.Header()["Content-Length"] = []string{strconv.Itoa(len(b))}
	_, _ = w.Write(b)
}

func TestKeepAliveAndPipelining(t *testing.T) {
	r := newRig(t, echo)
	c, in := r.dial()
	for _, body := range []string{"one", "", strings.Repeat("x", headBuffer-1), strings.Repeat("y", 3<<20), "two"} {
		go func() { _, _ = io.WriteString(c, wire(body)) }()
		if resp, got := answer(t, in); got != body || resp.StatusCode != 200 || resp.Close {
			t.Fatalf("%d bytes came back as %d", len(body), len(got))
		}
	}
	_, _ = io.WriteString(c, wire("first")+wire("second")+wire("third"))
	for _, want := range []string{"first", "second", "third"} {
		if _, got := answer(t, in); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	}
	if n := r.behind.Load(); n != 0 {
		t.Errorf("%d requests went behind", n)
	}
}

// A request split at any byte is the same request.
func TestSplitRequests(t *testing.T) {
	r := newRig(t, echo)
	c, in := r.dial()
	whole := wire("hello", "X-A: b")
	for i := 1; i < len(whole); i++ {
		_, _ = io.WriteString(c, whole[:i])
		time.Sleep(200 * time.Microsecond)
		_, _ = io.WriteString(c, whole[i:])
		if _, got := answer(t, in); got != "hello" {
			t.Fatalf("split at %d: %q", i, got)
		}
	}
}

// What is neither plain nor ordinary is served all the same, behind.
func TestUnusualGoesBehind(t *testing.T) {
	r := newRig(t, echo)
	for _, tt := range []struct{ name, text, want string }{
		{"old", "POST /fast HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", "ok"},
		{"upgrade", "GET /fast HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", ""},
		{"trailers", "POST /other HTTP/1.1\r\nHost: x\r\nTE: trailers\r\nContent-Length: 2\r\n\r\nok", "ok"},
		{"whole address", "GET http://x/fast HTTP/1.1\r\nHost: x\r\n\r\n", ""},
		{"long head", "POST /fast HTTP/1.1\r\nHost: x\r\nX-Long: " + strings.Repeat("l", maxHead) + "\r\nContent-Length: 2\r\n\r\nok", "ok"},
		{"after a plain one", wire("plain") + "GET /fast HTTP/1.0\r\nHost: x\r\n\r\n", "plain"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, in := r.dial()
			_, _ = io.WriteString(c, tt.text)
			if resp, got := answer(t, in); resp.StatusCode != 200 || got != tt.want {
				t.Errorf("%d %q", resp.StatusCode, got)
			}
		})
	}
	if n := r.behind.Load(); n < 5 {
		t.Errorf("only %d requests went behind", n)
	}
}

// Heads that two parsers may read in two ways are refused and end the
// connection, on whichever route, wherever they are split, and after requests of
// either kind.
func TestAmbiguousIsRefused(t *testing.T) {
	r := newRig(t, echo)
	const chunks = "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
	for _, line := range []string{"POST /fast", "POST /other", "GET /fast", "PUT /x?a=b"} {
		begin := line + " HTTP/1.1\r\nHost: x\r\n"
		for name, text := range map[string]string{
			"both lengths":        begin + "Content-Length: 2\r\n" + chunks,
			"both, other order":   begin + "transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n",
			"both, space":         begin + "Content-Length : 2\r\n" + chunks,
			"folded":              begin + "X-A: b\r\n c\r\nContent-Length: 0\r\n\r\n",
			"folded by a tab":     begin + "X-A: b\r\n\tc\r\n\r\n",
			"folded at the start": line + " HTTP/1.1\r\n X: y\r\nHost: x\r\n\r\n",
			"bare LF":             line + " HTTP/1.1\nHost: x\n\n",
			"one bare LF":         begin + "X-A: b\nX-B: c\r\n\r\n",
			"LF in a blank line":  begin + "X-A: b\r\n\n",
			"long":                begin + "X-Long: " + strings.Repeat("l", maxHead) + "\r\nContent-Length: 2\r\n" + chunks,
		} {
			for _, before := range []string{"", wire("plain")} {
				c, in := r.dial()
				_, _ = io.WriteString(c, before+text[:len(line)])
				time.Sleep(time.Millisecond)
				_, _ = io.WriteString(c, text[len(line):])
				if before != "" {
					answer(t, in)
				}
				if resp, got := answer(t, in); resp.StatusCode != 400 || !resp.Close {
					t.Errorf("%s, %s: %d %q, close %v", line, name, resp.StatusCode, got, resp.Close)
				}
			}
		}
	}
	if n := r.behind.Load(); n != 0 {
		t.Errorf("%d of them went behind", n)
	}
	c, in := r.dial()
	_, _ = io.WriteString(c, "GET /fast HTTP/1.1\r\nHost: x\r\nTE: trailers\r\n\r\n")
	if resp, _ := answer(t, in); resp.StatusCode != 200 || !resp.Close {
		t.Errorf("a connection that was handed over goes on: %d", resp.StatusCode)
	}
}

func TestMalformedIsRefused(t *testing.T) {
	r := newRig(t, echo)
	for _, text := range []string{
		"POST /fast HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!",
		"POST /fast HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: xchunked\r\n\r\nok",
		"POST /fast HTTP/1.1\r\nHost: x\r\nContent-Length: -2\r\n\r\n",
		"POST /fast HTTP/1.1\r\nHost: x\r\nContent-Length : 2\r\n\r\nok",
		"POST /fast HTTP/1.1\r\nHost: x\r\nHost: y\r\nContent-Length: 2\r\n\r\nok",
		"POST /fast HTTP/1.1\r\nContent-Length: 2\r\n\r\nok",
		"POST /fast HTTP/1.1\r\nHost: x\r\nA: b\x00\r\nContent-Length: 2\r\n\r\nok",
		"\x16\x03\x01\x02\x00",
	} {
		c, in := r.dial()
		_, _ = io.WriteString(c, text)
		_ = c.(*net.TCPConn).CloseWrite()
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			continue // closed without a word
		}
		_ = resp.Body.Close()
		if resp.StatusCode < 400 {
			t.Errorf("%q: %d", text, resp.StatusCode)
		}
	}
}

// A stream's events leave one by one, in order, and the connection is reused.
func TestStreams(t *testing.T) {
	next := make(chan bool)
	r := newRig(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		_ = http.NewResponseController(w).Flush()
		for range 3 {
			<-next
			_, _ = io.WriteString(w, "event\n\n")
			_ = http.NewResponseController(w).Flush()
		}
	})
	c, in := r.dial()
	for range 2 {
		_, _ = io.WriteString(c, wire("{}"))
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			next <- true
			got := make([]byte, 7)
			if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != "event\n\n" {
				t.Fatalf("%q %v", got, err)
			}
		}
		if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
			t.Fatalf("%q %v", rest, err)
		}
		_ = resp.Body.Close()
	}
}

// A client that leaves ends the request's context, however it leaves.
func TestClientLeaves(t *testing.T) {
	for _, how := range []string{"FIN", "RST"} {
		t.Run(how, func(t *testing.T) {
			began, gone := make(chan bool), make(chan bool)
			r := newRig(t, func(w http.ResponseWriter, req *http.Request) {
				_, _ = io.Copy(io.Discard, req.Body)
				began <- true
				<-req.Context().Done()
				close(gone)
			})
			c, _ := r.dial()
			_, _ = io.WriteString(c, wire("{}"))
			<-began
			if how == "RST" {
				_ = c.(*net.TCPConn).SetLinger(0)
			}
			_ = c.Close()
			select {
			case <-gone:
			case <-time.After(soon):
				t.Error("nobody told the handler")
			}
		})
	}
}

// An aborted response must not look like a whole one.
func TestAbortCuts(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		_, _ = io.WriteString(w, "half")
		panic(http.ErrAbortHandler)
	})
	c, in := r.dial()
	_, _ = io.WriteString(c, wire("{}"))
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if string(body) != "half" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%q %v", body, err)
	}
}

// An answer given before the body was read arrives, and the connection ends.
func TestRefusedBody(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Length"] = []string{"3"}
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		_, _ = io.WriteString(w, "big")
	})
	c, in := r.dial()
	if _, err := io.WriteString(c, wire(strings.Repeat("x", 8<<20))); err != nil {
		t.Fatal(err)
	}
	if resp, got := answer(t, in); resp.StatusCode != 413 || got != "big" || !resp.Close {
		t.Errorf("%d %q %v", resp.StatusCode, got, resp.Close)
	}
}

func TestHeadersCannotBeSplit(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header()["X-A"] = []string{"b\r\nX-Evil: c"}
		w.WriteHeader(http.StatusNoContent)
	})
	c, in := r.dial()
	_, _ = io.WriteString(c, wire("{}"))
	if resp, _ := answer(t, in); resp.Header.Get("X-Evil") != "" || resp.Header.Get("X-A") != "b  X-Evil: c" {
		t.Errorf("%v", resp.Header)
	}
}

// The body deadline that a handler sets holds, and ends with the request.
func TestBodyDeadline(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, req *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(30 * time.Millisecond))
		_, err := io.ReadAll(req.Body)
		_, _ = fmt.Fprint(w, err)
	})
	c, in := r.dial()
	_, _ = io.WriteString(c, "POST /fast HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
	if _, got := answer(t, in); !strings.Contains(got, "timeout") {
		t.Errorf("%q", got)
	}
}

func TestNoDelay(t *testing.T) {
	r := newRig(t, echo)
	c, in := r.dial()
	_, _ = io.WriteString(c, wire("x"))
	answer(t, in)
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	for conn := range r.server.conns {
		raw, err := conn.raw.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		_ = raw.Control(func(fd uintptr) {
			if v, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_NODELAY); v == 0 || err != nil {
				t.Errorf("TCP_NODELAY %d, %v", v, err)
			}
		})
	}
}

// A shutdown lets requests finish, closes idle connections, and takes no more.
func TestShutdown(t *testing.T) {
	began, release := make(chan bool), make(chan bool)
	r := newRig(t, func(w http.ResponseWriter, req *http.Request) {
		began <- true
		<-release
		echo(w, req)
	})
	idleConn, _ := r.dial()
	busy, in := r.dial()
	_, _ = io.WriteString(busy, wire("late"))
	<-began
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.server.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if _, err := idleConn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("idle connection: %v", err)
	}
	close(release)
	if resp, got := answer(t, in); got != "late" || resp.StatusCode != 200 {
		t.Errorf("%d %q", resp.StatusCode, got)
	}
	wg.Wait()
}

// An event makes no allocation.
func TestAllocations(t *testing.T) {
	events := make(chan float64, 1)
	r := newRig(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		event := []byte("data: {}\n\n")
		_, _ = w.Write(event)
		events <- testing.AllocsPerRun(100, func() { _, _ = w.Write(event) })
	})
	c, in := r.dial()
	_, _ = io.WriteString(c, wire("{}"))
	answer(t, in)
	if n := <-events; n >= 1 { // the race detector empties pools now and then
		t.Errorf("%v allocations an event", n)
	}
}
