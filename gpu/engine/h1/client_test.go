package h1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/core/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func request(body string) *Request {
	return &Request{Target: "/v1/x", Host: "h", Head: []byte("Content-Type: application/json\r\n"), Body: []byte(body)}
}

// rawServer answers each connection by handle, until the test ends.
func rawServer(t *testing.T, handle func(c net.Conn, in *bufio.Reader)) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			handle(c, bufio.NewReader(c))
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().String()
}

// readRequest reads one request off the wire.
func readRequest(in *bufio.Reader) error {
	r, err := http.ReadRequest(in)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, r.Body)
	return err
}

func TestFramings(t *testing.T) {
	tests := []struct {
		name, wire, want string
		err              error
		status           int
	}{
		{"length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", nil, 200},
		{"bare LF", "HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", "hello", nil, 200},
		{"no reason", "HTTP/1.1 429\r\nContent-Length: 0\r\n\r\n", "", nil, 429},
		{"chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nT: v\r\n\r\n", "hello", nil, 200},
		{"until close", "HTTP/1.1 200 OK\r\n\r\nhello", "hello", nil, 200},
		{"continue first", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "ok", nil, 200},
		{"no content", "HTTP/1.1 204 No Content\r\n\r\n", "", nil, 204},
		{"length cut", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", "hello", engine.ErrBroken, 200},
		{"chunk cut", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhello", "hello", engine.ErrBroken, 200},
		{"no last chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "hello", engine.ErrBroken, 200},
		{"cut in trailer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n", "hello", engine.ErrBroken, 200},
		{"chunk too long", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n", "he", engine.ErrBroken, 200},
		{"chunk size lies", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", "", engine.ErrBroken, 200},
		{"both lengths", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "", ErrProtocol, 0},
		{"other encoding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "", ErrProtocol, 0},
		{"negative length", "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "", ErrProtocol, 0},
		{"folded header", "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", "", ErrProtocol, 0},
		{"not HTTP", "SSH-2.0-x\r\n\r\n", "", ErrProtocol, 0},
		{"endless interim", strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 20), "", ErrProtocol, 0},
		{"endless head", "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 20_000), "", ErrProtocol, 0},
		{"head cut", "HTTP/1.1 200 OK\r\nContent-", "", engine.ErrBroken, 0},
		{"nothing", "", "", engine.ErrBroken, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			addr := rawServer(t, func(c net.Conn, in *bufio.Reader) {
				_ = readRequest(in)
				_, _ = io.WriteString(c, tt.wire)
				_ = c.Close()
			})
			c := New(addr, Config{})
			defer c.Close()
			resp, err := c.Post(t.Context(), request("{}"))
			if tt.status == 0 {
				if !errors.Is(err, tt.err) || !errors.Is(err, engine.ErrBroken) {
					t.Fatalf("error %v, want %v as a broken call", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp)
			if resp.Status != tt.status || string(body) != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("%d %q, %v; want %d %q, %v", resp.Status, body, err, tt.status, tt.want, tt.err)
			}
			_ = resp.Close()
		})
	}
}

func TestConnectionsAreReused(t *testing.T) {
	var conns atomic.Int32
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %d", r.URL.Path, len(b))
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	srv.Start()
	defer srv.Close()
	c := New(srv.Listener.Addr().String(), Config{})
	defer c.Close()
	for _, n := range []int{0, 1, smallBody, smallBody + 1, 3 << 20} {
		resp, err := c.Post(t.Context(), request(strings.Repeat("x", n)))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp)
		if want := fmt.Sprintf("/v1/x %d", n); string(body) != want || err != nil {
			t.Fatalf("%q, %v; want %q", body, err, want)
		}
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("%d connections for calls one after another", n)
	}
}

// TestIdleConnectionClosedByThePeer is the race of a server that closes idle
// connections just when the next call comes: no error, and nothing twice.
func TestIdleConnectionClosedByThePeer(t *testing.T) {
	var served atomic.Int32
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		served.Add(1)
		_, _ = io.WriteString(w, "ok")
	}))
	srv.Config.IdleTimeout = 3 * time.Millisecond
	srv.Start()
	defer srv.Close()
	c := New(srv.Listener.Addr().String(), Config{})
	defer c.Close()
	const calls = 200
	for i := range calls {
		resp, err := c.Post(t.Context(), request("{}"))
		if err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
		if _, err := io.ReadAll(resp); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
		time.Sleep(time.Duration(2800+i*2) * time.Microsecond)
	}
	if n := served.Load(); n != calls {
		t.Errorf("served %d times for %d calls", n, calls)
	}
}

// TestIdleConnectionThatIsNotSilent has a server that, between two calls, ends its
// side of the connection without closing it, or speaks unasked. Nothing is sent
// there, and what was said is nobody's answer.
func TestIdleConnectionThatIsNotSilent(t *testing.T) {
	for name, meddle := range map[string]func(c net.Conn){
		"half closed": func(c net.Conn) { _ = c.(*net.TCPConn).CloseWrite() },
		"speaks":      func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong") },
	} {
		for _, n := range []int{2, smallBody + 1} {
			meddled := make(chan struct{})
			var first sync.Once
			addr := rawServer(t, func(c net.Conn, in *bufio.Reader) {
				if err := readRequest(in); err != nil {
					t.Error(err)
				}
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nright")
				first.Do(func() {
					meddle(c)
					close(meddled)
				})
				if err := readRequest(in); err == nil {
					t.Errorf("%s: a request was sent on it", name)
				}
				_ = c.Close()
			})
			c := New(addr, Config{})
			for range 2 {
				resp, err := c.Post(t.Context(), request(strings.Repeat("x", n)))
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if b, err := io.ReadAll(resp); string(b) != "right" || err != nil {
					t.Errorf("%s: %q, %v", name, b, err)
				}
				<-meddled
				time.Sleep(time.Millisecond) // for the news to cross the loopback
			}
			c.Close()
		}
	}
}

// TestEngineThatDiesOfARequest is a used connection that ends while the engine
// computes: the request is not tried on the next connection too.
func TestEngineThatDiesOfARequest(t *testing.T) {
	var read atomic.Int32
	addr := rawServer(t, func(c net.Conn, in *bufio.Reader) {
		defer c.Close() //nolint:errcheck // its end is the point
		for readRequest(in) == nil {
			if read.Add(1) > 1 {
				time.Sleep(20 * time.Millisecond) // it computes
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	})
	c := New(addr, Config{})
	defer c.Close()
	c.crossing = 5 * time.Millisecond
	resp, err := c.Post(t.Context(), request("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(resp); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Post(t.Context(), request("{}")); !errors.Is(err, engine.ErrBroken) {
		t.Errorf("got %v, want ErrBroken", err)
	}
	if n := read.Load(); n != 2 {
		t.Errorf("the engine read %d requests, want 2", n)
	}
}

func TestCancelClosesTheConnection(t *testing.T) {
	for _, stage := range []string{"before the head", "between events"} {
		t.Run(stage, func(t *testing.T) {
			gone := make(chan error, 1)
			addr := rawServer(t, func(c net.Conn, in *bufio.Reader) {
				_ = readRequest(in)
				if stage == "between events" {
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
				}
				_, err := in.ReadByte()
				gone <- err
				_ = c.Close()
			})
			c := New(addr, Config{})
			defer c.Close()
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(20*time.Millisecond, cancel)
			resp, err := c.Post(ctx, request("{}"))
			if err == nil {
				var body []byte
				if body, err = io.ReadAll(resp); string(body) != "one" {
					t.Errorf("body %q", body)
				}
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
			if err := <-gone; !errors.Is(err, io.EOF) {
				t.Errorf("server saw %v", err)
			}
		})
	}
}

func TestCloseBeforeTheEndAborts(t *testing.T) {
	gone := make(chan error, 1)
	addr := rawServer(t, func(c net.Conn, in *bufio.Reader) {
		_ = readRequest(in)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
		_, err := in.ReadByte()
		gone <- err
		_ = c.Close()
	})
	c := New(addr, Config{})
	defer c.Close()
	resp, err := c.Post(t.Context(), request("{}"))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Close()
	if err := <-gone; err == nil {
		t.Error("the connection is used on")
	}
}

func TestNobodyListens(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	c := New(addr, Config{})
	defer c.Close()
	if _, err := c.Post(t.Context(), request("{}")); !errors.Is(err, engine.ErrConnect) {
		t.Errorf("error %v", err)
	}
}

// TestEarlyRefusal is a server that answers 413 and closes before it has read
// the body: the answer must arrive, not the broken pipe.
func TestEarlyRefusal(t *testing.T) {
	addr := rawServer(t, func(c net.Conn, in *bufio.Reader) {
		_, _ = in.ReadString('\n')
		_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbig!")
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, in)
		_ = c.Close()
	})
	c := New(addr, Config{})
	defer c.Close()
	resp, err := c.Post(t.Context(), request(strings.Repeat("x", 8<<20)))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(resp); resp.Status != 413 || string(b) != "big!" || err != nil {
		t.Errorf("%d %q %v", resp.Status, b, err)
	}
}

func FuzzResponse(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\n\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		cn := &conn{client: New("x", Config{}), raw: newSocket(new(net.TCPConn)), in: bufio.NewReader(bytes.NewReader(wire))}
		resp := &Response{conn: cn, ctx: t.Context(), stop: func() bool { return true }}
		if err := resp.readHead(cn); err != nil {
			return
		}
		n, err := io.Copy(io.Discard, resp)
		if n > int64(len(wire)) {
			t.Fatalf("%d bytes of body from %d on the wire", n, len(wire))
		}
		if err != nil && !errors.Is(err, engine.ErrBroken) {
			t.Fatalf("untyped error %v", err)
		}
		cn.client.Close()
	})
}

func BenchmarkPost(b *testing.B) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "ok")
	}))
	defer srv.Close()
	c := New(srv.Listener.Addr().String(), Config{})
	defer c.Close()
	req := request(strings.Repeat("x", 1000))
	var buf [512]byte
	b.ReportAllocs()
	for b.Loop() {
		resp, err := c.Post(b.Context(), req)
		if err != nil {
			b.Fatal(err)
		}
		for err == nil {
			_, err = resp.Read(buf[:])
		}
	}
}

// Chunks that came together are read together, whatever the split; the end that
// came with them is told at once.
func TestChunksThatCameTogether(t *testing.T) {
	const wire = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n03;x=y\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n"
	head := strings.Index(wire, "3\r\n")
	for cut := 1; cut <= len(wire); cut++ {
		more, gone := make(chan bool), make(chan bool)
		addr := rawServer(t, func(c net.Conn, in *bufio.Reader) {
			_ = readRequest(in)
			_, _ = io.WriteString(c, wire[:cut])
			<-more
			_, _ = io.WriteString(c, wire[cut:])
			<-gone
			_ = c.Close()
		})
		c := New(addr, Config{})
		if cut < head {
			close(more) // inside the head, which has to be whole first
		}
		resp, err := c.Post(t.Context(), request("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if cut >= head {
			time.AfterFunc(time.Millisecond, func() { close(more) })
		}
		body, err := io.ReadAll(resp)
		if string(body) != "onetwothree" || err != nil {
			t.Fatalf("cut at %d: %q, %v", cut, body, err)
		}
		close(gone)
		c.Close()
	}
	addr := rawServer(t, func(c net.Conn, in *bufio.Reader) {
		_ = readRequest(in)
		_, _ = io.WriteString(c, strings.Replace(wire, "03;x=y", "3", 1))
	})
	c := New(addr, Config{})
	defer c.Close()
	resp, err := c.Post(t.Context(), request("{}"))
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64)
	if n, err := resp.Read(b); string(b[:n]) != "onetwothree" || !errors.Is(err, io.EOF) {
		t.Errorf("one read: %q, %v", b[:n], err)
	}
}
