package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/raftstore/identity"
)

// hang is far more than anything here takes.
const hang = 20 * time.Second

func TestPortCarriesProtocols(t *testing.T) {
	c := newCluster(t)
	a, b := c.port("a"), c.port("b")
	echo(t, b, ProtoPeer)
	echo(t, b, ProtoHub)
	for _, proto := range []string{ProtoPeer, ProtoHub} {
		conn := dial(t, a, b, proto)
		if conn.PeerID != "b" || conn.Proto != proto {
			t.Errorf("peer %q, protocol %q", conn.PeerID, conn.Proto)
		}
		says(t, conn, "hello over "+proto)
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

func dial(t *testing.T, from, to *Port, proto string) *Conn {
	t.Helper()
	conn, err := from.Dial(t.Context(), to.NodeID(), to.addr(), proto)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestListenerLearnsThePeer(t *testing.T) {
	c := newCluster(t)
	a, b := c.port("a"), c.port("b")
	l := b.Listener(ProtoPeer)
	mine := dial(t, a, b, ProtoPeer)
	defer func() { _ = mine.Close() }()
	got, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if theirs, ok := got.(*Conn); !ok || theirs.PeerID != "a" {
		t.Errorf("accepted %T of %v", got, theirs)
	}
}

// Whatever is wrong is told in a sentence that says what to do.
func TestDialErrors(t *testing.T) {
	c := newCluster(t)
	b := c.port("b")
	echo(t, b, ProtoPeer)
	now := time.Now()
	at := func(token string, skew time.Duration) *Port {
		return openPort(t, identity.Config{NodeID: "a", TokenFile: token, Clock: clock.NewVirtual(now.Add(skew))})
	}
	fine := at(c.token, 0)
	quick := c.port("a", func(cfg *PortConfig) { cfg.HandshakeTimeout = 100 * time.Millisecond })
	tests := []struct {
		name  string
		from  *Port
		peer  string
		addr  string
		proto string
		want  error
		says  string
	}{
		{"another token", at(tokenFile(t, identity.NewToken()), 0), "b", b.addr(), ProtoPeer, identity.ErrForeign, "do both use the same cluster.token-file?"},
		{"another node", fine, "c", b.addr(), ProtoPeer, identity.ErrWrongNode, `is another node`},
		{"our clock is ahead", at(c.token, 72*time.Hour), "b", b.addr(), ProtoPeer, identity.ErrExpired, "compare the clocks"},
		{"our clock is behind", at(c.token, -72*time.Hour), "b", b.addr(), ProtoPeer, identity.ErrNotYetValid, "compare the clocks"},
		{"protocol of another release", fine, "b", b.addr(), "ym-core/9", ErrNoProtocol, "does not serve ym-core/9"},
		{"plain text that speaks first", fine, "b", plain(t, "220 mail.example ESMTP\r\n"), ProtoPeer, ErrNotTLS, "is not a peer port"},
		{"an HTTP server", fine, "b", plain(t, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"), ProtoPeer, ErrNotTLS, "is not a peer port"},
		{"an HTTPS server", fine, "b", https(t), ProtoPeer, nil, "b at "},
		{"a stranger's port that says nothing", quick, "b", each(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }), ProtoPeer, ErrUnanswered, "did not answer in time"},
		{"nobody listens", fine, "b", closedAddr(t), ProtoPeer, nil, "is not listening"},
		{"no address", fine, "b", "nowhere", ProtoPeer, nil, "cannot be reached"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			conn, err := tt.from.Dial(t.Context(), tt.peer, tt.addr, tt.proto)
			if err == nil {
				_ = conn.Close()
				t.Fatal("connected")
			}
			if tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
			if text := err.Error(); !strings.HasPrefix(text, tt.peer+" at "+tt.addr) || !strings.Contains(text, tt.says) || strings.Contains(text, "\n") {
				t.Errorf("says %q, want %q", text, tt.says)
			}
			t.Log(err)
		})
	}
}

// A node whose token is known to one side only is told by the other.
func TestPeerSaysWhyItRefuses(t *testing.T) {
	old, fresh := identity.NewToken(), identity.NewToken()
	early := openPort(t, identity.Config{NodeID: "a", TokenFile: tokenFile(t, fresh, old)})
	late := openPort(t, identity.Config{NodeID: "b", TokenFile: tokenFile(t, old)})
	echo(t, late, ProtoPeer)
	_, err := early.Dial(t.Context(), "b", late.addr(), ProtoPeer)
	if !errors.Is(err, ErrRefused) || !errors.Is(err, identity.ErrForeign) || !strings.Contains(err.Error(), "takes this node's certificate for one of another cluster") {
		t.Errorf("%v", err)
	}
	ahead := openPort(t, identity.Config{NodeID: "a", TokenFile: tokenFile(t, old), Clock: clock.NewVirtual(time.Now().Add(3 * time.Hour))})
	if _, err := ahead.Dial(t.Context(), "b", late.addr(), ProtoPeer); !errors.Is(err, ErrRefused) || !errors.Is(err, identity.ErrNotYetValid) {
		t.Errorf("%v", err)
	}
}

func listenTCP(t *testing.T) net.Listener {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// each serves every connection of a foreign server in its own way.
func each(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l := listenTCP(t)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				serve(c)
			}()
		}
	}()
	return l.Addr().String()
}

func plain(t *testing.T, says string) string {
	t.Helper()
	return each(t, func(c net.Conn) {
		_, _ = io.WriteString(c, says)
		_, _ = io.Copy(io.Discard, c)
	})
}

func https(t *testing.T) string {
	t.Helper()
	other, err := identity.Open(identity.Config{NodeID: "web", TokenFile: tokenFile(t, identity.NewToken())})
	if err != nil {
		t.Fatal(err)
	}
	conf := other.ServerTLS("h2", "http/1.1")
	conf.ClientAuth, conf.VerifyConnection = tls.NoClientCert, nil
	return each(t, func(c net.Conn) { _ = tls.Server(c, conf).HandshakeContext(t.Context()) })
}

func closedAddr(t *testing.T) string {
	t.Helper()
	l := listenTCP(t)
	_ = l.Close()
	return l.Addr().String()
}

// Strangers: each is refused, counted under its reason, and none holds the
// port up.
func TestStrangers(t *testing.T) {
	c := newCluster(t)
	reg := new(measure.Registry)
	b := c.port("b", func(cfg *PortConfig) {
		cfg.Registry = reg
		cfg.HandshakeTimeout = 300 * time.Millisecond
	})
	echo(t, b, ProtoPeer)
	foreign, err := identity.Open(identity.Config{NodeID: "x", TokenFile: tokenFile(t, identity.NewToken())})
	if err != nil {
		t.Fatal(err)
	}
	careless := foreign.ClientTLS("", ProtoPeer)
	careless.VerifyConnection = nil
	nobody := careless.Clone()
	nobody.GetClientCertificate = nil
	nameless := careless.Clone()
	nameless.NextProtos = nil
	for _, tt := range []struct {
		reason string
		call   func(net.Conn)
	}{
		{"foreign", func(c net.Conn) { shake(t, c, careless) }},
		{"no_certificate", func(c net.Conn) { shake(t, c, nobody) }},
		{"foreign", func(c net.Conn) { shake(t, c, nameless) }},
		{"not_tls", func(c net.Conn) { _, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") }},
		{"not_tls", func(c net.Conn) { _, _ = c.Write(make([]byte, 4096)) }},
		{"timeout", func(c net.Conn) { _, _ = c.Write([]byte{0x16, 3, 1, 2, 0, 1}) }}, // half a hello
		{"timeout", func(net.Conn) {}},
	} {
		before := reg.Counter(measure.PeerRefusals, tt.reason).Value()
		var d net.Dialer
		conn, err := d.DialContext(t.Context(), "tcp", b.addr())
		if err != nil {
			t.Fatal(err)
		}
		tt.call(conn)
		_ = conn.SetReadDeadline(time.Now().Add(hang))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: not cut off", tt.reason)
		}
		_ = conn.Close()
		until(t, tt.reason+" is not counted", func() bool { return reg.Counter(measure.PeerRefusals, tt.reason).Value() == before+1 })
	}
	a := c.port("a")
	conn := dial(t, a, b, ProtoPeer)
	says(t, conn, "still here")
	_ = conn.Close()
	until(t, "connections are left", func() bool { return b.Conns() == 0 && a.Conns() == 0 })
	for _, way := range []string{"in", "out"} {
		if n := reg.Gauge(measure.PeerConnections, way).Value(); n != 0 {
			t.Errorf("the gauge shows %v connections %s", n, way)
		}
	}
}

func shake(t *testing.T, c net.Conn, conf *tls.Config) {
	t.Helper()
	s := tls.Client(c, conf)
	if s.HandshakeContext(t.Context()) != nil {
		return
	}
	var answer [2]byte
	if n, _ := io.ReadFull(s, answer[:]); n > 0 && answer[0] == answerWelcome {
		t.Error("a stranger is welcome")
	}
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(hang); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// Ten thousand who open a connection and say nothing do not keep a member out.
func TestSlowLoris(t *testing.T) {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	callers := min(10_000, int(files.Cur/3))
	c := newCluster(t)
	a, b := c.port("a"), c.port("b", func(cfg *PortConfig) { cfg.HandshakeTimeout = 30 * time.Second })
	echo(t, b, ProtoPeer)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			var d net.Dialer
			for range callers / 10 {
				conn, err := d.DialContext(ctx, "tcp", b.addr())
				if err != nil {
					return
				}
				defer func() { _ = conn.Close() }()
			}
			<-ctx.Done()
		})
	}
	until(t, "the places are not taken", func() bool { return len(b.waiting.slots) == maxHandshakes })
	conn, err := a.Dial(t.Context(), "b", b.addr(), ProtoPeer)
	for end := time.Now().Add(hang); err != nil && time.Now().Before(end); {
		conn, err = a.Dial(t.Context(), "b", b.addr(), ProtoPeer)
	}
	if err != nil {
		t.Fatal(err)
	}
	says(t, conn, "through")
	_ = conn.Close()
	if n := len(b.waiting.slots); n > maxHandshakes {
		t.Errorf("%d handshakes at once", n)
	}
	cancel()
	all.Wait()
}

func TestBounds(t *testing.T) {
	c := newCluster(t)
	b := c.port("b", func(cfg *PortConfig) { cfg.MaxPerPeer, cfg.MaxConns = 3, 5 })
	echo(t, b, ProtoPeer)
	take := func(p *Port, want int) (open []*Conn) {
		t.Helper()
		for {
			conn, err := p.Dial(t.Context(), "b", b.addr(), ProtoPeer)
			if err != nil {
				if !errors.Is(err, ErrBusy) || len(open) != want {
					t.Errorf("%s got %d connections, then %v; want %d", p.NodeID(), len(open), err, want)
				}
				return open
			}
			open = append(open, conn)
		}
	}
	a, d := c.port("a"), c.port("d")
	open := take(a, 3)
	others := take(d, 2)
	closeAll(append(open, others...))
	until(t, "places are not given back", func() bool { return b.Conns() == 0 })
	closeAll(take(d, 3))
}

// A protocol whose owner does not accept refuses, and the others go on.
func TestUnacceptedConnectionsAreBounded(t *testing.T) {
	c := newCluster(t)
	a, b := c.port("a"), c.port("b")
	l := b.Listener(ProtoHub)
	echo(t, b, ProtoPeer)
	var err error
	taken := 0
	for ; err == nil && taken <= backlog; taken++ {
		_, err = a.Dial(t.Context(), "b", b.addr(), ProtoHub)
	}
	if !errors.Is(err, ErrBusy) || taken != backlog+1 {
		t.Errorf("after %d: %v", taken, err)
	}
	says(t, dial(t, a, b, ProtoPeer), "not affected")
	_ = l.Close()
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
	until(t, "unaccepted connections are left", func() bool { return b.Conns() == 1 })
	if _, err := a.Dial(t.Context(), "b", b.addr(), ProtoHub); !errors.Is(err, ErrNoProtocol) {
		t.Errorf("after Close: %v", err)
	}
	echo(t, b, ProtoHub) // may be taken anew
	says(t, dial(t, a, b, ProtoHub), "again")
}

func TestNobodyTookAnyProtocol(t *testing.T) {
	c := newCluster(t)
	a, b := c.port("a"), c.port("b")
	for _, proto := range []string{ProtoPeer, "none", ""} {
		if _, err := a.Dial(t.Context(), "b", b.addr(), proto); err == nil {
			t.Errorf("%q is served", proto)
		}
	}
}

// Peers that neither read nor answer do not hold Close up, nor do handshakes
// and dials that hang.
func TestCloseWithStuckPeers(t *testing.T) {
	c := newCluster(t)
	a, b := c.port("a"), c.port("b")
	l := b.Listener(ProtoPeer) // accepted, never read
	var blocked sync.WaitGroup
	for range 8 {
		conn := dial(t, a, b, ProtoPeer)
		if _, err := l.Accept(); err != nil {
			t.Fatal(err)
		}
		blocked.Go(func() {
			for { // until Close ends it
				if _, err := conn.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		})
	}
	hole := each(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	blocked.Go(func() {
		if _, err := a.Dial(t.Context(), "z", hole, ProtoPeer); !errors.Is(err, ErrClosed) && !errors.Is(err, ErrUnanswered) {
			t.Errorf("dial while closing: %v", err)
		}
	})
	var d net.Dialer
	silent, err := d.DialContext(t.Context(), "tcp", a.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	time.Sleep(20 * time.Millisecond)
	for _, p := range []*Port{a, b} {
		begin := time.Now()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took > hang/4 {
			t.Errorf("%s: Close took %v", p.NodeID(), took)
		}
		if n := p.Conns(); n != 0 {
			t.Errorf("%s: %d connections are left", p.NodeID(), n)
		}
	}
	blocked.Wait()
	if _, err := a.Dial(t.Context(), "b", b.addr(), ProtoPeer); !errors.Is(err, ErrClosed) {
		t.Errorf("dial after Close: %v", err)
	}
	if _, err := a.Listener(ProtoPeer).Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("listener after Close: %v", err)
	}
}

// Tokens change on both nodes while a connection is in use. It lives on until
// the old token is gone, and new ones can be made at every moment.
func TestRotationUnderTraffic(t *testing.T) {
	old, fresh := identity.NewToken(), identity.NewToken()
	type node struct {
		*Port
		file string
	}
	open := func(id string) node {
		file := tokenFile(t, old)
		return node{openPort(t, identity.Config{NodeID: id, TokenFile: file}), file}
	}
	a, b := open("a"), open("b")
	echo(t, b.Port, ProtoPeer)
	conn := dial(t, a.Port, b.Port, ProtoPeer)
	for _, step := range [][]string{{old, fresh}, {fresh, old}} {
		for _, n := range []node{a, b} {
			writeTokens(t, n.file, step...)
			n.id.Refresh()
			a.distrust()
			b.distrust()
			says(t, conn, "the old connection")
			says(t, dial(t, a.Port, b.Port, ProtoPeer), "a new connection")
		}
	}
	newest := dial(t, a.Port, b.Port, ProtoPeer)
	for _, n := range []node{a, b} {
		writeTokens(t, n.file, fresh)
		n.id.Refresh()
		n.distrust()
	}
	says(t, newest, "vouched for by the new token")
	_ = conn.SetReadDeadline(time.Now().Add(hang))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the old token's connection lives on: %v", err)
	}
}
