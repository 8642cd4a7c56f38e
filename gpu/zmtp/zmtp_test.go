package zmtp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quick are options for tests: short pauses, short patience.
func quick() Options {
	return Options{ReconnectMin: 5 * time.Millisecond, ReconnectMax: 20 * time.Millisecond, HandshakeTimeout: 5 * time.Second}
}

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

type binder interface {
	Bind(ctx context.Context, endpoint string) (net.Addr, error)
	Close() error
}

// bound binds s to a free port and returns the endpoint.
func bound(t *testing.T, s binder) string {
	t.Helper()
	addr, err := s.Bind(t.Context(), "tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return "tcp://" + addr.String()
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func text(frames [][]byte) []string {
	out := make([]string, len(frames))
	for i, f := range frames {
		out[i] = string(f)
	}
	return out
}

func TestPublishSubscribe(t *testing.T) {
	pub := NewPub(quick())
	endpoint := bound(t, pub)
	sub := NewSub(quick(), "kv@a", "other")
	defer func() { _ = sub.Close() }()
	must(t, sub.Connect(endpoint))
	until(t, "subscribed", func() bool { return pub.Subscribers("kv@a") == 1 })
	pub.Publish([]byte("kv@b"), []byte("not wanted"))
	big := bytes.Repeat([]byte("x"), 300_000)
	pub.Publish([]byte("kv@a|m"), big, nil)
	m, err := sub.Recv(soon(t))
	if err != nil || len(m.Frames) != 3 || string(m.Frames[0]) != "kv@a|m" || !bytes.Equal(m.Frames[1], big) || len(m.Frames[2]) != 0 {
		t.Fatalf("%d frames, %v", len(m.Frames), err)
	}
}

// A publisher may be the one who connects.
func TestPublisherConnects(t *testing.T) {
	sub := NewSub(quick(), "")
	endpoint := bound(t, sub)
	pub := NewPub(quick())
	defer func() { _ = pub.Close() }()
	must(t, pub.Connect(endpoint))
	until(t, "subscribed", func() bool { return pub.Subscribers("any") == 1 })
	pub.Publish([]byte("t"), []byte("1"))
	m, err := sub.Recv(soon(t))
	if err != nil || cmp.Diff([]string{"t", "1"}, text(m.Frames)) != "" {
		t.Fatalf("%q, %v", m.Frames, err)
	}
}

func TestRequestAndReplies(t *testing.T) {
	router := NewRouter(quick())
	endpoint := bound(t, router)
	dealer := NewDealer(quick())
	defer func() { _ = dealer.Close() }()
	must(t, dealer.Connect(endpoint))
	ctx := soon(t)
	must(t, dealer.Send(ctx, nil, []byte("from 7")))
	m, err := router.Recv(ctx)
	if err != nil || cmp.Diff([]string{"", "from 7"}, text(m.Frames)) != "" {
		t.Fatalf("%q, %v", m.Frames, err)
	}
	for _, r := range []string{"a", "b"} {
		must(t, router.Send(ctx, m.Peer, nil, []byte(r)))
		got, err := dealer.Recv(ctx)
		if err != nil || string(got.Frames[1]) != r {
			t.Fatalf("%q, %v", got.Frames, err)
		}
	}
	if err := router.Send(ctx, m.Peer+9, []byte("x")); !errors.Is(err, ErrPeer) {
		t.Errorf("unknown peer: %v", err)
	}
	_ = dealer.Close()
	until(t, "dealer left", func() bool { return router.Peers() == 0 })
	if err := router.Send(ctx, m.Peer, []byte("x")); !errors.Is(err, ErrPeer) {
		t.Errorf("departed peer: %v", err)
	}
}

// A restarted publisher is found again, and the reader can tell.
func TestReconnect(t *testing.T) {
	first := NewPub(quick())
	endpoint := bound(t, first)
	sub := NewSub(quick(), "")
	defer func() { _ = sub.Close() }()
	must(t, sub.Connect(endpoint))
	until(t, "subscribed", func() bool { return first.Subscribers("") == 1 })
	first.Publish([]byte("1"))
	before, err := sub.Recv(soon(t))
	must(t, err)
	must(t, first.Close())

	second := NewPub(quick())
	defer func() { _ = second.Close() }()
	_, err = second.Bind(t.Context(), endpoint)
	must(t, err)
	until(t, "subscribed again", func() bool { return second.Subscribers("") == 1 })
	second.Publish([]byte("2"))
	after, err := sub.Recv(soon(t))
	if err != nil || after.Peer == before.Peer || string(after.Frames[0]) != "2" {
		t.Errorf("%+v after %+v, %v", after, before, err)
	}
}

// TestAnnounce: a connection is announced behind the last message of the one
// before it and before its own first, also when it brings none.
func TestAnnounce(t *testing.T) {
	first := NewPub(quick())
	addr, err := first.Bind(t.Context(), "tcp://127.0.0.1:0")
	must(t, err)
	o := quick()
	o.Announce = true
	sub := NewSub(o, "")
	defer func() { _ = sub.Close() }()
	must(t, sub.Connect("tcp://"+addr.String()))
	until(t, "subscribed", func() bool { return first.Subscribers("") == 1 })
	first.Publish([]byte("old"))
	until(t, "received", func() bool { return len(sub.in) == 2 })
	must(t, first.Close())
	o.Queue = 1 // an announcement that nobody receives would fill it
	second := NewPub(o)
	defer func() { _ = second.Close() }()
	until(t, "bound again", func() bool { _, err := second.Bind(t.Context(), "tcp://"+addr.String()); return err == nil })
	until(t, "subscribed again", func() bool { return second.Subscribers("") == 1 })
	until(t, "announced", func() bool { return len(sub.in) == 3 })
	second.Publish([]byte("new"))
	for i, want := range []Inbound{
		{Peer: 1}, {1, [][]byte{[]byte("old")}}, {Peer: 2}, {2, [][]byte{[]byte("new")}},
	} {
		got, err := sub.Recv(soon(t))
		must(t, err)
		if diff := cmp.Diff(want, got); diff != "" || got.Announces() != (i%2 == 0) {
			t.Errorf("message %d: %s", i, diff)
		}
	}
}

// A subscriber that does not read costs the publisher a queue, not its time.
func TestSlowSubscriber(t *testing.T) {
	o := quick()
	o.Queue = 4
	o.WriteTimeout = time.Minute
	pub := NewPub(o)
	endpoint := bound(t, pub)
	conn := rawPeer(t, endpoint, "SUB")
	must(t, write(conn, appendCommand(nil, "SUBSCRIBE", nil)))
	until(t, "subscribed", func() bool { return pub.Subscribers("") == 1 })
	chunk := make([]byte, 1<<20)
	until(t, "dropped", func() bool {
		pub.Publish(chunk)
		return pub.Dropped() > 3
	})
}

// A reader that is not read holds no more than its queue.
func TestUnreadSubscriberStopsReading(t *testing.T) {
	o := quick()
	o.Queue = 3
	sub := NewSub(o, "")
	endpoint := bound(t, sub)
	conn := rawPeer(t, endpoint, "PUB")
	var sent int
	for range 200 {
		_ = conn.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := conn.Write(appendMessage(nil, [][]byte{make([]byte, 1<<20)})); err != nil {
			break
		}
		sent++
	}
	if sent == 200 || len(sub.in) > 3 {
		t.Errorf("took %d MB, %d queued", sent, len(sub.in))
	}
}

// rawPeer connects and shakes hands by hand.
func rawPeer(t *testing.T, endpoint, kind string) net.Conn {
	t.Helper()
	conn := dial(t, endpoint)
	must(t, write(conn, appendReady(greeting(), kind)))
	_, err := readGreeting(conn)
	must(t, err)
	p, err := (&reader{bufio.NewReaderSize(conn, 16), 1 << 10, 4}).next()
	if err != nil || p.command != "READY" {
		t.Fatalf("%+v, %v", p, err)
	}
	return conn
}

func dial(t *testing.T, endpoint string) net.Conn {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", endpoint[len("tcp://"):])
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func write(w io.Writer, b []byte) error {
	_, err := w.Write(b)
	return err
}

// closes reports whether the other side ends the connection.
func closes(t *testing.T, conn net.Conn) bool {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err := io.Copy(io.Discard, conn)
	timeout, ok := errors.AsType[net.Error](err)
	return !ok || !timeout.Timeout()
}

// What a stranger sends ends its own connection and nothing else.
func TestStrangers(t *testing.T) {
	old := greeting()
	old[10] = 2
	plain := greeting()
	copy(plain[12:], "PLAIN")
	greet := func(b ...byte) []byte { return append(greeting(), b...) }
	ready := func(b ...byte) []byte { return append(appendReady(greeting(), "DEALER"), b...) }
	for name, sends := range map[string][]byte{
		"HTTP":                 []byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
		"version 2":            old,
		"another mechanism":    plain,
		"a message, not READY": greet(0, 1, 'x'),
		"an ERROR":             append(greeting(), appendCommand(nil, "ERROR", []byte("\x02no"))...),
		"READY cut short":      append(greeting(), appendCommand(nil, "READY", []byte("\x0bSocket-Type\xff\xff\xff\xffA"))...),
		"READY without type":   append(greeting(), appendCommand(nil, "READY", nil)...),
		"a SUB for a ROUTER":   appendReady(greeting(), "SUB"),
		"reserved flags":       ready(0x80, 0),
		"a huge frame":         ready(flagLong, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		"too many frames":      ready(bytes.Repeat([]byte{flagMore, 0}, 100)...),
		"a command in between": ready(flagMore, 0, flagCommand, 5, 4, 'P', 'I', 'N', 'G'),
		"a huge command":       ready(flagCommand|flagLong, 0, 0, 0, 0, 0, 1, 0, 0),
		"a nameless command":   ready(flagCommand, 1, 0),
		"a short command":      ready(flagCommand, 2, 9, 'x'),
		"an empty greeting":    {},
		"half a greeting":      greeting()[:20],
	} {
		t.Run(name, func(t *testing.T) {
			o := quick()
			o.MaxMessage = 1 << 20
			if len(sends) < greetingSize {
				o.HandshakeTimeout = 20 * time.Millisecond
			}
			router := NewRouter(o)
			endpoint := bound(t, router)
			conn := dial(t, endpoint)
			must(t, write(conn, sends))
			if !closes(t, conn) {
				t.Error("connection stays open")
			}
			good := NewDealer(quick())
			defer func() { _ = good.Close() }()
			must(t, good.Connect(endpoint))
			must(t, good.Send(soon(t), []byte("still here")))
			if _, err := router.Recv(soon(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestHeartbeats(t *testing.T) {
	o := quick()
	o.Heartbeat = 10 * time.Millisecond
	router := NewRouter(o)
	endpoint := bound(t, router)

	// One that answers stays; one that falls silent after answering is dropped.
	conn := rawPeer(t, endpoint, "DEALER")
	r := &reader{bufio.NewReader(conn), 1 << 10, 4}
	for range 3 {
		p, err := r.next()
		if err != nil || p.command != "PING" {
			t.Fatalf("%+v, %v", p, err)
		}
		must(t, write(conn, appendCommand(nil, "PONG", nil)))
	}
	if !closes(t, conn) {
		t.Error("a silent peer is kept")
	}

	// Theirs are answered with the context they carry.
	conn = rawPeer(t, endpoint, "DEALER")
	must(t, write(conn, appendCommand(nil, "PING", []byte{0, 9, 'c', 't', 'x'})))
	r = &reader{bufio.NewReader(conn), 1 << 10, 4}
	for {
		p, err := r.next()
		must(t, err)
		if p.command == "PONG" {
			if string(p.data) != "ctx" {
				t.Errorf("context %q", p.data)
			}
			break
		}
	}

	// One that never answered is given the benefit of the doubt.
	conn = rawPeer(t, endpoint, "DEALER")
	time.Sleep(6 * o.Heartbeat)
	must(t, write(conn, appendMessage(nil, [][]byte{[]byte("late")})))
	if m, err := router.Recv(soon(t)); err != nil || string(m.Frames[0]) != "late" {
		t.Errorf("%q, %v", m.Frames, err)
	}
}

// Subscriptions of peers before 3.1 are messages.
func TestOldSubscriber(t *testing.T) {
	pub := NewPub(quick())
	conn := rawPeer(t, bound(t, pub), "SUB")
	must(t, write(conn, appendMessage(nil, [][]byte{[]byte("\x01a")})))
	until(t, "subscribed", func() bool { return pub.Subscribers("ab") == 1 })
	must(t, write(conn, appendMessage(nil, [][]byte{[]byte("\x00a")})))
	until(t, "unsubscribed", func() bool { return pub.Subscribers("ab") == 0 })
	must(t, write(conn, appendCommand(nil, "SUBSCRIBE", []byte("b"))))
	until(t, "subscribed again", func() bool { return pub.Subscribers("b") == 1 })
	must(t, write(conn, appendCommand(nil, "CANCEL", []byte("b"))))
	until(t, "cancelled", func() bool { return pub.Subscribers("b") == 0 })
}

func TestEndpoints(t *testing.T) {
	for _, bad := range []string{"", "127.0.0.1:1", "udp://a:1", "tcp://a", "tcp://*:1", "ipc://"} {
		if err := NewSub(quick()).Connect(bad); !errors.Is(err, ErrEndpoint) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	sub := NewSub(quick())
	must(t, sub.Close())
	if err := sub.Connect("tcp://127.0.0.1:1"); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if _, err := sub.Recv(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d := NewDealer(quick())
	defer func() { _ = d.Close() }()
	if err := d.Send(ctx, []byte("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("send without a peer: %v", err)
	}
	path := t.TempDir() + "/s"
	router := NewRouter(quick())
	defer func() { _ = router.Close() }()
	_, err := router.Bind(t.Context(), "ipc://"+path)
	must(t, err)
	must(t, d.Connect("ipc://"+path))
	must(t, d.Send(soon(t), []byte("x")))
	_, err = router.Recv(soon(t))
	must(t, err)
}

func TestTooManyPeers(t *testing.T) {
	o := quick()
	o.MaxPeers = 1
	router := NewRouter(o)
	endpoint := bound(t, router)
	rawPeer(t, endpoint, "DEALER")
	if !closes(t, dial(t, endpoint)) {
		t.Error("the second peer is kept")
	}
}

// Any message survives any cut of the stream.
func TestMessageRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frame := rapid.SliceOfN(rapid.Byte(), 0, 600)
		want := rapid.SliceOfN(frame, 1, 5).Draw(t, "frames")
		r := reader{bufio.NewReaderSize(bytes.NewReader(appendMessage(nil, want)), 16), 1 << 20, 8}
		got, err := r.next()
		if err != nil || len(got.frames) != len(want) {
			t.Fatal(err)
		}
		for i := range want {
			if !bytes.Equal(want[i], got.frames[i]) {
				t.Fatalf("frame %d differs", i)
			}
		}
	})
}

func FuzzReader(f *testing.F) {
	f.Add(appendMessage(nil, [][]byte{[]byte("topic"), make([]byte, 8), make([]byte, 300)}))
	f.Add(appendCommand(nil, "PING", []byte{0, 1}))
	f.Add([]byte{flagLong, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{flagLong, 0, 0, 0, 0, 0, 0x0f, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, in []byte) {
		r := reader{bufio.NewReader(bytes.NewReader(in)), 1 << 20, 8}
		for {
			p, err := r.next()
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) &&
					!errors.Is(err, ErrProtocol) && !errors.Is(err, ErrTooLarge) {
					t.Fatalf("untyped error %v", err)
				}
				return
			}
			if p.command == "READY" {
				_, _ = parseReady(p.data)
			}
		}
	})
}

func FuzzGreeting(f *testing.F) {
	f.Add(greeting())
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if minor, err := readGreeting(bytes.NewReader(in)); err == nil && len(in) < greetingSize {
			t.Fatalf("accepted %d bytes as version 3.%d", len(in), minor)
		}
	})
}
