package faultnet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hang is far more than anything here takes; silent is long enough to believe
// that nothing comes.
const (
	hang   = 20 * time.Second
	silent = 100 * time.Millisecond
)

// listen opens a node's address.
func listen(t *testing.T, n *Net, node string) net.Listener {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	n.Add(node, l.Addr().String())
	return l
}

// connect makes a connection from a to b and gives both of its ends.
func connect(t *testing.T, n *Net, l net.Listener) (a, b net.Conn) {
	t.Helper()
	a, err := n.Dialer("a")(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b
}

func start(t *testing.T) (*Net, net.Listener) {
	t.Helper()
	n := New(1)
	t.Cleanup(n.Close)
	return n, listen(t, n, "b")
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	_ = c.SetReadDeadline(time.Now().Add(hang))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("received %q, %v; want %q", got, err, want)
	}
}

func nothing(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(silent))
	var b [1]byte
	if _, err := c.Read(b[:]); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %q, %v; want nothing", b, err)
	}
}

func ended(t *testing.T, c net.Conn) error {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(hang))
	_, err := c.Read(make([]byte, 1))
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read: %v; want the end", err)
	}
	return err
}

func TestHealthy(t *testing.T) {
	n, l := start(t)
	a, b := connect(t, n, l)
	send(t, a, "ping")
	receive(t, b, "ping")
	send(t, b, "pong")
	receive(t, a, "pong")
	_ = a.Close()
	if err := ended(t, b); !errors.Is(err, io.EOF) {
		t.Errorf("b's end: %v", err)
	}
}

func TestHalfClose(t *testing.T) {
	n, l := start(t)
	a, b := connect(t, n, l)
	send(t, a, "all")
	tcp, _ := a.(*net.TCPConn)
	_ = tcp.CloseWrite()
	receive(t, b, "all")
	if err := ended(t, b); !errors.Is(err, io.EOF) {
		t.Errorf("b's end: %v", err)
	}
	send(t, b, "answer")
	receive(t, a, "answer")
}

func TestOneWayHoldsBytesAndEnds(t *testing.T) {
	n, l := start(t)
	a, b := connect(t, n, l)
	n.OneWay("a", "b")
	send(t, a, "held")
	send(t, b, "through")
	receive(t, a, "through")
	nothing(t, b)
	_ = a.Close()
	nothing(t, b) // nor does it hear that a is gone
	n.Heal()
	receive(t, b, "held")
	_ = ended(t, b)
}

func TestNoConnectionIsMadeWhilePacketsVanishEitherWay(t *testing.T) {
	for _, link := range []Link{{"a", "b"}, {"b", "a"}} {
		n, l := start(t)
		n.OneWay(link.From, link.To)
		ctx, cancel := context.WithTimeout(t.Context(), silent)
		defer cancel()
		if _, err := n.Dialer("a")(ctx, "tcp", l.Addr().String()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v: dial: %v", link, err)
		}
		n.Heal()
		connect(t, n, l)
	}
}

func TestCutResetsWhatWasDialledThatWay(t *testing.T) {
	n, l := start(t)
	a, b := connect(t, n, l)
	n.Set("b", "a", Fault{Cut: true})
	send(t, a, "still there")
	receive(t, b, "still there")
	n.Set("a", "b", Fault{Cut: true})
	for _, c := range []net.Conn{a, b} {
		if err := ended(t, c); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("end: %v", err)
		}
	}
	if _, err := n.Dialer("a")(t.Context(), "tcp", l.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial: %v", err)
	}
	n.Heal()
	connect(t, n, l)
}

func TestReset(t *testing.T) {
	n, l := start(t)
	a, b := connect(t, n, l)
	n.Reset("b", "a")
	_, _ = ended(t, a), ended(t, b)
	connect(t, n, l)
}

// A connection that was given is the network's at once, although it may not have
// reached the node yet.
func TestResetRightAfterDialling(t *testing.T) {
	resets := map[string]func(n *Net){
		"reset": func(n *Net) { n.Reset("b", "a") },
		"cut": func(n *Net) {
			n.Set("a", "b", Fault{Cut: true})
			n.Heal()
		},
	}
	for name, reset := range resets {
		t.Run(name, func(t *testing.T) {
			n, l := start(t)
			for range 50 {
				a, err := n.Dialer("a")(t.Context(), "tcp", l.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				reset(n)
				if err := ended(t, a); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("end: %v", err)
				}
				_ = a.Close()
			}
		})
	}
}

func TestDelayKeepsOrderAndThroughput(t *testing.T) {
	n, l := start(t)
	const delay = 60 * time.Millisecond
	n.Set("a", "b", Fault{Delay: delay, Jitter: delay})
	a, b := connect(t, n, l)
	data := make([]byte, 600<<10) // many times a chunk
	for i := range data {
		data[i] = byte(i >> 8)
	}
	begin := time.Now()
	go func() { _, _ = a.Write(data) }()
	got := make([]byte, len(data))
	_ = b.SetReadDeadline(time.Now().Add(hang))
	if _, err := io.ReadFull(b, got); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("the bytes differ, or %v", err)
	}
	if took := time.Since(begin); took < delay {
		t.Errorf("arrived after %v", took)
	}
}

func TestRate(t *testing.T) {
	n, l := start(t)
	n.Set("a", "b", Fault{Rate: 20_000})
	a, b := connect(t, n, l)
	begin := time.Now()
	go func() { _, _ = a.Write(make([]byte, 6_000)) }()
	if _, err := io.ReadFull(b, make([]byte, 5_000)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < 150*time.Millisecond {
		t.Errorf("5,000 bytes at 20,000 a second took %v", took)
	}
	n.Heal()
	if _, err := io.ReadFull(b, make([]byte, 1_000)); err != nil {
		t.Fatal(err)
	}
}

func TestFrontKnowsNobody(t *testing.T) {
	n, l := start(t)
	addr, err := n.Front("b")
	if err != nil {
		t.Fatal(err)
	}
	var d net.Dialer
	a, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Close() }()
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	send(t, a, "x")
	receive(t, b, "x")
	n.Isolate("b")
	send(t, a, "y")
	nothing(t, b)
	if _, err := n.Front("nobody"); !errors.Is(err, ErrUnknownNode) {
		t.Errorf("front of nobody: %v", err)
	}
}

func TestPartition(t *testing.T) {
	got := Partition([]string{"a"}, []string{"b", "c"})
	hole := Fault{Blackhole: true}
	want := Step{Name: "partition a | b,c", Faults: map[Link]Fault{
		{"a", "b"}: hole, {"b", "a"}: hole, {"a", "c"}: hole, {"c", "a"}: hole,
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDrawIsToldBySeed(t *testing.T) {
	nodes := []string{"a", "b", "c", "d", "e"}
	draw := func(seed uint64) (steps []Step) {
		rng := rand.New(rand.NewPCG(seed, 0))
		for range 200 {
			steps = append(steps, Draw(rng, nodes))
		}
		return steps
	}
	one := draw(7)
	if diff := cmp.Diff(one, draw(7)); diff != "" {
		t.Error(diff)
	}
	for _, s := range one {
		if len(s.Faults) == 0 || s.Name == "" {
			t.Errorf("a step without faults: %+v", s)
		}
	}
	rng := rand.New(rand.NewPCG(3, 0))
	for range 50 {
		if s := Draw(rng, nodes[:2]); len(s.Faults) == 0 {
			t.Errorf("a step of two nodes without faults: %+v", s)
		}
	}
}

func TestCloseWithStuckConnections(t *testing.T) {
	n, l := start(t)
	a, _ := connect(t, n, l)
	n.OneWay("a", "b")
	_ = a.SetWriteDeadline(time.Now().Add(silent))
	for { // until everything on the way is full
		if _, err := a.Write(make([]byte, 1<<16)); err != nil {
			break
		}
	}
	n.Close()
	if n.Conns() != 0 {
		t.Errorf("%d connections are left", n.Conns())
	}
}
