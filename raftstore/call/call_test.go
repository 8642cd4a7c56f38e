package call

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/raftstore/identity"
	"github.com/yardmaster/yardmaster/raftstore/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// yard hands out ports that share a token.
type yard struct {
	testing.TB
	token string // file
}

func newYard(t testing.TB) yard {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(identity.NewToken()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return yard{t, token}
}

// port opens a port at an address, on the loopback.
func (y yard) port(id, addr string) *transport.Port {
	y.Helper()
	who, err := identity.Open(identity.Config{NodeID: id, TokenFile: y.token})
	if err != nil {
		y.Fatal(err)
	}
	var ln net.Listener
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if ln, err = new(net.ListenConfig).Listen(y.Context(), "tcp", addr); err == nil {
			break
		}
		if time.Now().After(end) {
			y.Fatal(err)
		}
	}
	p := transport.NewPort(transport.PortConfig{Listener: ln, Identity: who})
	y.Cleanup(func() { _ = p.Close() })
	return p
}

const anywhere = "127.0.0.1:0"

func (y yard) caller(id string) *Caller {
	y.Helper()
	c := NewCaller(y.port(id, anywhere))
	y.Cleanup(c.Close)
	return c
}

func (y yard) server(p *transport.Port, handle Handler) *Server {
	y.Helper()
	s := NewServer(p, handle)
	y.Cleanup(s.Close)
	return s
}

func at(p *transport.Port) Target { return Target{ID: p.NodeID(), Addr: p.Addr().String()} }

// within is a context of the test's that ends.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// What the handler of these tests is asked for.
const (
	kindEcho Kind = iota
	kindLate      // answered by a goroutine
	kindWait      // until nobody waits any more
	kindNever
	kindRefuse
)

func handle(r *Incoming) {
	switch r.Kind {
	case kindEcho:
		r.Answer(Done, append([]byte(r.Peer+r.Cluster+":"), r.Body...))
	case kindLate:
		r.Go(func(context.Context) { r.Answer(Done, r.Body) })
	case kindWait:
		r.Go(func(ctx context.Context) {
			<-ctx.Done()
			r.Answer(Refused, []byte(ctx.Err().Error()))
		})
	case kindRefuse:
		r.Answer(Refused, []byte("not me"))
	default: // never
	}
}

func TestCall(t *testing.T) {
	y := newYard(t)
	b := y.port("b", anywhere)
	y.server(b, handle)
	c := y.caller("a")
	ctx := within(t, 30*time.Second)
	body, err := c.Call(ctx, at(b), Request{Kind: kindEcho, Cluster: "yard", Body: []byte("hello")})
	if err != nil || string(body) != "ayard:hello" {
		t.Errorf("%q, %v", body, err)
	}
	if _, err := c.Call(ctx, at(b), Request{Kind: kindRefuse}); !errors.Is(err, ErrRefused) {
		t.Errorf("a refusal: %v", err)
	}
	large := make([]byte, maxBody)
	if body, err := c.Call(ctx, at(b), Request{Kind: kindLate, Body: large}); err != nil || len(body) != maxBody {
		t.Errorf("the largest body: %d bytes, %v", len(body), err)
	}
	if _, err := c.Call(ctx, at(b), Request{Body: append(large, 0)}); !errors.Is(err, ErrRefused) {
		t.Errorf("a body that is too large: %v", err)
	}
}

// Calls of many goroutines get their own answers, over one connection.
func TestMany(t *testing.T) {
	y := newYard(t)
	b := y.port("b", anywhere)
	y.server(b, handle)
	c := y.caller("a")
	ctx := within(t, 30*time.Second)
	var all sync.WaitGroup
	for i := range 2 * underway {
		all.Go(func() {
			for j := range 5 {
				text := fmt.Sprintf("%d/%d/%s", i, j, make([]byte, i*j))
				if body, err := c.Call(ctx, at(b), Request{Kind: kindLate, Body: []byte(text)}); err != nil || string(body) != text {
					t.Errorf("%q, %v", body, err)
				}
			}
		})
	}
	all.Wait()
	if n := b.Conns(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

func TestNothingAsked(t *testing.T) {
	y := newYard(t)
	b, served := y.port("b", anywhere), y.port("s", anywhere)
	y.server(served, handle)
	c := y.caller("a")
	over, stop := context.WithCancel(t.Context())
	stop()
	for name, try := range map[string]struct {
		ctx  context.Context
		to   Target
		want error
	}{
		"not served":        {within(t, 20*time.Second), at(b), ErrNotServed},
		"not served, again": {within(t, 20*time.Second), at(b), ErrNotServed},
		"another node":      {within(t, 20*time.Second), Target{"c", served.Addr().String()}, ErrUnreachable},
		"nobody":            {within(t, 20*time.Second), Target{"b", "127.0.0.1:1"}, ErrUnreachable},
		"nowhere":           {within(t, 20*time.Second), Target{"b", ""}, ErrUnreachable},
		"too late":          {over, at(served), ErrUnreachable},
	} {
		if _, err := c.Call(try.ctx, try.to, Request{}); !errors.Is(err, try.want) || errors.Is(err, ErrLost) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c.Close()
	if _, err := c.Call(t.Context(), at(served), Request{}); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// A caller waits as long as it said, and what comes later harms nobody.
func TestDeadline(t *testing.T) {
	y := newYard(t)
	b := y.port("b", anywhere)
	y.server(b, handle)
	c := y.caller("a")
	for _, kind := range []Kind{kindWait, kindNever} {
		_, err := c.Call(within(t, 30*time.Millisecond), at(b), Request{Kind: kind})
		// Before it is connected nothing is lost, and the peer may be quicker to give up.
		mine := errors.Is(err, context.DeadlineExceeded) && (errors.Is(err, ErrLost) || errors.Is(err, ErrUnreachable))
		if !mine && (kind == kindNever || !errors.Is(err, ErrRefused)) {
			t.Errorf("kind %d: %v", kind, err)
		}
	}
	if _, err := c.Call(within(t, 20*time.Second), at(b), Request{Kind: kindEcho}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// A peer that leaves everything unanswered is asked no more than a bounded number
// of calls.
func TestStalls(t *testing.T) {
	y := newYard(t)
	b := y.port("b", anywhere)
	y.server(b, handle)
	c := y.caller("a")
	if _, err := c.Call(within(t, 20*time.Second), at(b), Request{Kind: kindEcho}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range underway {
		all.Go(func() {
			if _, err := c.Call(ctx, at(b), Request{Kind: kindNever}); !errors.Is(err, ErrLost) {
				t.Errorf("never answered: %v", err)
			}
		})
	}
	conn, _, _ := c.look(at(b))
	for end := time.Now().Add(20 * time.Second); len(conn.slots) < underway; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d calls are under way", len(conn.slots))
		}
	}
	if _, err := c.Call(within(t, 20*time.Millisecond), at(b), Request{Kind: kindEcho}); !errors.Is(err, ErrUnreachable) {
		t.Errorf("one call too many: %v", err)
	}
	stop()
	all.Wait()
	conn.lookAfter(time.Now()) // it may yet answer
	if conn.err != nil {
		t.Errorf("given up at once: %v", conn.err)
	}
	conn.lookAfter(time.Now().Add(longest + grace + time.Second))
	if _, err := c.Call(within(t, 20*time.Second), at(b), Request{Kind: kindEcho}); err != nil {
		t.Errorf("over another connection: %v", err)
	}
}

func TestIdle(t *testing.T) {
	y := newYard(t)
	b := y.port("b", anywhere)
	y.server(b, handle)
	c := y.caller("a")
	ctx := within(t, 20*time.Second)
	if _, err := c.Call(ctx, at(b), Request{}); err != nil {
		t.Fatal(err)
	}
	conn, _, _ := c.look(at(b))
	conn.lookAfter(time.Now().Add(idleAfter + time.Second))
	<-conn.ended
	if _, err := c.Call(ctx, at(b), Request{}); err != nil {
		t.Errorf("after a rest: %v", err)
	}
	c.mu.Lock()
	c.dropIdle(time.Now().Add(2 * idleAfter))
	left := len(c.links)
	c.mu.Unlock()
	if left != 0 {
		t.Errorf("%d peers are remembered", left)
	}
}

// Whoever dies with calls leaves their outcome open, and is found again where it
// was.
func TestPeerDies(t *testing.T) {
	y := newYard(t)
	b := y.port("b", anywhere)
	server := y.server(b, handle)
	c := y.caller("a")
	where := at(b)
	for round := range 3 {
		lost := make(chan error, 1)
		if _, err := c.Call(within(t, 20*time.Second), where, Request{Kind: kindEcho}); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, err := c.Call(within(t, 20*time.Second), where, Request{Kind: kindNever})
			lost <- err
		}()
		conn, _, _ := c.look(where)
		for len(conn.slots) == 0 {
			time.Sleep(time.Millisecond)
		}
		if round == 1 { // the process lives, and serves no more
			server.Stop()
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-lost; !errors.Is(err, ErrLost) {
			t.Errorf("round %d: %v", round, err)
		}
		server.Close()
		b = y.port("b", where.Addr)
		server = y.server(b, handle)
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			_, err := c.Call(within(t, 20*time.Second), where, Request{Kind: kindEcho})
			if err == nil {
				break
			}
			if !errors.Is(err, ErrUnreachable) || time.Now().After(end) {
				t.Fatalf("after its restart: %v", err)
			}
		}
	}
}

// Close ends calls that are under way, on both sides.
func TestClose(t *testing.T) {
	y := newYard(t)
	b := y.port("b", anywhere)
	server := y.server(b, handle)
	var all sync.WaitGroup
	for i, kind := range []Kind{kindWait, kindNever, kindEcho, kindLate} {
		c := y.caller("a" + strconv.Itoa(i))
		for range 8 {
			all.Go(func() {
				for {
					_, err := c.Call(within(t, 20*time.Second), at(b), Request{Kind: kind})
					if errors.Is(err, ErrClosed) || errors.Is(err, ErrNotServed) {
						return
					}
					if errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("kind %d: %v", kind, err)
						return
					}
				}
			})
		}
		all.Go(func() {
			time.Sleep(50 * time.Millisecond)
			if i%2 == 0 {
				c.Close()
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
	server.Close()
	all.Wait()
}

// An answer after the end of its connection goes nowhere.
func TestAnswerAfterTheEnd(t *testing.T) {
	y := newYard(t)
	b := y.port("b", anywhere)
	kept := make(chan *Incoming, 1)
	server := y.server(b, func(r *Incoming) { kept <- r })
	c := y.caller("a")
	lost := make(chan error, 1)
	go func() {
		_, err := c.Call(within(t, 20*time.Second), at(b), Request{})
		lost <- err
	}()
	r := <-kept
	server.Close()
	r.Answer(Done, nil)
	if err := <-lost; !errors.Is(err, ErrLost) {
		t.Error(err)
	}
}

// dial speaks the protocol by hand.
func dial(t *testing.T, from, to *transport.Port) *transport.Conn {
	t.Helper()
	conn, err := from.Dial(within(t, 20*time.Second), to.NodeID(), to.Addr().String(), transport.ProtoCall)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	return conn
}

// What is not a request ends the connection, and no other.
func TestServerIsToldNonsense(t *testing.T) {
	y := newYard(t)
	a, b := y.port("a", anywhere), y.port("b", anywhere)
	y.server(b, handle)
	good := y.caller("c")
	whole := appendRequest(nil, request{number: 7, kind: kindEcho, left: time.Second, cluster: "x", body: []byte("y")})
	for name, text := range map[string][]byte{
		"half a frame": whole[:len(whole)-1],
		"half a head":  {1, 0},
		"too large":    binary.LittleEndian.AppendUint32(nil, maxFrame+1),
		"too short":    {3, 0, 0, 0, 1, 2, 3},
		"a long name":  append(binary.LittleEndian.AppendUint32(nil, requestHead), make([]byte, requestHead-1)...),
		"garbage":      []byte("GET / HTTP/1.1\r\n\r\n"),
	} {
		if name == "a long name" {
			text = append(text, 255)
		}
		conn := dial(t, a, b)
		if _, err := conn.Write(text); err != nil {
			t.Fatal(err)
		}
		if name[:4] == "half" {
			if err := conn.Close(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if rest, err := io.ReadAll(conn); len(rest) > 0 {
			t.Errorf("%s was answered by %q, %v", name, rest, err)
		}
		_ = conn.Close()
	}
	// A request that comes byte by byte is one.
	conn := dial(t, a, b)
	defer func() { _ = conn.Close() }()
	for _, one := range whole {
		if _, err := conn.Write([]byte{one}); err != nil {
			t.Fatal(err)
		}
	}
	frame, err := transport.ReadFrame(bufio.NewReader(conn), maxFrame)
	if err != nil {
		t.Fatal(err)
	}
	if number, o, body, err := parseAnswer(frame); err != nil || number != 7 || o != Done || string(body) != "ax:y" {
		t.Errorf("%d, %d, %q, %v", number, o, body, err)
	}
	if _, err := good.Call(within(t, 20*time.Second), at(b), Request{}); err != nil {
		t.Errorf("somebody else: %v", err)
	}
}

// A peer that answers nonsense has perhaps done what was asked.
func TestCallerIsToldNonsense(t *testing.T) {
	y := newYard(t)
	b := y.port("b", anywhere)
	texts := make(chan []byte, 1)
	ln := b.Listener(transport.ProtoCall)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer func() { _ = ln.Close() }()
	serving.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			if _, err := transport.ReadFrame(conn, maxFrame); err == nil {
				_, _ = conn.Write(<-texts)
				if text := make([]byte, 1); err == nil {
					_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
					_, _ = conn.Read(text)
				}
			}
			_ = conn.Close()
		}
	})
	c := y.caller("a")
	for name, text := range map[string][]byte{
		"half":           appendAnswer(nil, 1, Done, []byte("abc"))[:9],
		"another number": appendAnswer(nil, 99, Done, nil),
		"no outcome":     appendAnswer(nil, 1, 77, nil),
		"too large":      binary.LittleEndian.AppendUint32(nil, maxFrame+1),
		"empty":          {0, 0, 0, 0},
		"nothing":        nil,
	} {
		texts <- text
		_, err := c.Call(within(t, 20*time.Second), at(b), Request{})
		if !errors.Is(err, ErrLost) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A peer has a bounded number of connections, and of calls under way.
func TestPeerIsBounded(t *testing.T) {
	y := newYard(t)
	a, b := y.port("a", anywhere), y.port("b", anywhere)
	server := y.server(b, handle)
	var conns []*transport.Conn
	for range perPeer + 2 {
		conn := dial(t, a, b)
		defer func() { _ = conn.Close() }()
		if _, err := conn.Write(appendRequest(nil, request{kind: kindEcho, left: time.Second})); err != nil {
			t.Fatal(err)
		}
		if _, err := transport.ReadFrame(conn, maxFrame); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	for _, old := range conns[:2] {
		if _, err := transport.ReadFrame(old, maxFrame); err == nil {
			t.Error("an old connection goes on")
		}
	}
	server.mu.Lock()
	if n := len(server.conns["a"]); n > perPeer {
		t.Errorf("%d connections of a peer", n)
	}
	server.mu.Unlock()
	last := conns[len(conns)-1]
	for range underway {
		if _, err := last.Write(appendRequest(nil, request{kind: kindNever, left: time.Second})); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := last.Write(appendRequest(nil, request{number: 5, kind: kindEcho, left: time.Second})); err != nil {
		t.Fatal(err)
	}
	frame, err := transport.ReadFrame(last, maxFrame)
	if err != nil {
		t.Fatal(err)
	}
	if number, o, _, err := parseAnswer(frame); number != 5 || o != Busy || err != nil {
		t.Errorf("answer to %d: %d, %v", number, o, err)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(appendRequest(nil, request{number: 1, kind: 2, left: time.Second, cluster: "c", body: []byte("body")})[4:])
	f.Add(appendAnswer(nil, 1, Busy, []byte("why"))[4:])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, frame []byte) {
		if q, err := parseRequest(frame); err == nil {
			again, err := parseRequest(appendRequest(nil, q)[4:])
			if err != nil || again.number != q.number || again.kind != q.kind || again.left != q.left || again.cluster != q.cluster || string(again.body) != string(q.body) {
				t.Errorf("%x: %+v became %+v, %v", frame, q, again, err)
			}
		}
		if number, o, body, err := parseAnswer(frame); err == nil && string(appendAnswer(nil, number, o, body)[4:]) != string(frame) {
			t.Errorf("%x: %d, %d, %x", frame, number, o, body)
		}
	})
}

// BenchmarkCall is a call of 200 bytes, one in flight.
func BenchmarkCall(b *testing.B) {
	y := newYard(b)
	peer := y.port("b", anywhere)
	y.server(peer, handle)
	c := y.caller("a")
	body := make([]byte, 200)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Call(b.Context(), at(peer), Request{Kind: kindEcho, Body: body}); err != nil {
			b.Fatal(err)
		}
	}
}
