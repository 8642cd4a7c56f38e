package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/yardmaster/yardmaster/raftstore/identity"
	"github.com/yardmaster/yardmaster/raftstore/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestBook(t *testing.T) {
	b := NewBook()
	if addr, ok := b.Resolve("a"); ok || addr != "" {
		t.Errorf("an empty book resolves a to %q", addr)
	}
	b.Meet(&Node{Id: "a", Addr: "x:1", Incarnation: "one"}, epoch)
	b.Meet(&Node{Id: "b"}, epoch.Add(time.Second))
	b.Meet(&Node{Id: "a", Addr: "x:2", Incarnation: "two"}, epoch.Add(2*time.Second))
	if addr, ok := b.Resolve("a"); !ok || addr != "x:2" {
		t.Errorf("a is at %q, %v", addr, ok)
	}
	if _, ok := b.Resolve("b"); ok {
		t.Error("a node without an address resolves")
	}
	n, met, ok := b.Find("a")
	if !ok || n.GetIncarnation() != "two" || !met.Equal(epoch.Add(2*time.Second)) {
		t.Errorf("Find = %v, %v, %v", n, met, ok)
	}
	if list := b.Nodes(epoch.Add(1500 * time.Millisecond)); len(list) != 1 || list[0].GetId() != "a" {
		t.Errorf("met lately: %v", list)
	}
	for i := range maxBook + 10 {
		b.Meet(&Node{Id: fmt.Sprintf("g%d", i)}, epoch.Add(time.Duration(i)*time.Minute))
	}
	if n := len(b.Nodes(time.Time{})); n != maxBook {
		t.Errorf("%d nodes in a book of %d", n, maxBook)
	}
	if _, _, ok := b.Find("a"); ok {
		t.Error("the oldest was kept")
	}
}

// port opens a port of a node on the loopback; they share a token.
func port(t *testing.T, token, id string) *transport.Port {
	t.Helper()
	who, err := identity.Open(identity.Config{NodeID: id, TokenFile: token})
	if err != nil {
		t.Fatal(err)
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := transport.NewPort(transport.PortConfig{Listener: ln, Identity: who})
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

type server struct{ UnimplementedPeerServer }

func (server) Hello(ctx context.Context, _ *HelloRequest) (*HelloResponse, error) {
	id, _ := transport.PeerID(ctx)
	return &HelloResponse{Leader: id}, nil // whom it heard
}

func serve(t *testing.T, p *transport.Port) {
	t.Helper()
	s := grpc.NewServer(transport.GRPCServerOptions()...)
	RegisterPeerServer(s, server{})
	ln, done := p.Listener(transport.ProtoPeer), make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(ln)
	}()
	t.Cleanup(func() { s.Stop(); <-done })
}

func TestPool(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(identity.NewToken()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, b := port(t, token, "a"), port(t, token, "b")
	serve(t, b)
	pool := NewPool(a)
	defer pool.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, id := range []string{"b", ""} { // by name, and whoever is there
		client, err := pool.Client(ctx, id, b.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Hello(ctx, &HelloRequest{})
		if err != nil || resp.GetLeader() != "a" {
			t.Errorf("%q: %v, %v", id, resp, err)
		}
	}
	for name, to := range map[string][2]string{
		"another node": {"c", b.Addr().String()}, "nobody listens": {"b", "127.0.0.1:1"}, "no address": {"b", ""},
	} {
		if _, err := pool.Client(ctx, to[0], to[1]); !errors.Is(err, ErrUnreachable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	brief, stop := context.WithCancel(ctx)
	stop()
	if _, err := pool.Client(brief, "b", "127.0.0.1:2"); !errors.Is(err, ErrUnreachable) {
		t.Errorf("a context that is over: %v", err)
	}
	pool.Close()
	if _, err := pool.Client(ctx, "b", b.Addr().String()); !errors.Is(err, ErrPoolClosed) {
		t.Errorf("a closed pool: %v", err)
	}
}
