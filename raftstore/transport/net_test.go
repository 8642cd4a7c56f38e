package transport

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/raftstore/identity"
)

// cluster hands out ports that share a token.
type cluster struct {
	t     testing.TB
	token string // file
}

func newCluster(t testing.TB) *cluster {
	t.Helper()
	return &cluster{t: t, token: tokenFile(t, identity.NewToken())}
}

func tokenFile(t testing.TB, tokens ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "token")
	writeTokens(t, name, tokens...)
	return name
}

func writeTokens(t testing.TB, name string, tokens ...string) {
	t.Helper()
	var text []byte
	for _, token := range tokens {
		text = append(append(text, token...), '\n')
	}
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// port opens one; edit may change its configuration.
func (c *cluster) port(node string, edit ...func(*PortConfig)) *Port {
	c.t.Helper()
	return openPort(c.t, identity.Config{NodeID: node, TokenFile: c.token}, edit...)
}

func openPort(t testing.TB, who identity.Config, edit ...func(*PortConfig)) *Port {
	t.Helper()
	if who.Clock == nil {
		who.Clock = clock.Real{}
	}
	id, err := identity.Open(who)
	if err != nil {
		t.Fatal(err)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := PortConfig{Listener: l, Identity: id, Registry: new(measure.Registry)}
	for _, e := range edit {
		e(&cfg)
	}
	p := NewPort(cfg)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func (p *Port) addr() string { return p.Addr().String() }

// echo serves a protocol that says everything again.
func echo(t testing.TB, p *Port, proto string) {
	t.Helper()
	l := p.Listener(proto)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

// says checks that a connection echoes.
func says(t testing.TB, c net.Conn, text string) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	defer func() { _ = c.SetDeadline(time.Time{}) }()
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatal(err)
	}
	if string(got) != text {
		t.Errorf("got %q, want %q", got, text)
	}
}
