package transport

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// serveGRPC runs a health service on a port; it notes who calls.
func serveGRPC(t *testing.T, p *Port) (callers <-chan string) {
	t.Helper()
	seen := make(chan string, 16)
	note := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if id, ok := PeerID(ctx); ok {
			seen <- id
		}
		return next(ctx, req)
	}
	s := grpc.NewServer(append(GRPCServerOptions(), grpc.UnaryInterceptor(note))...)
	healthpb.RegisterHealthServer(s, health.NewServer())
	l := p.Listener(ProtoPeer)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() { s.Stop(); <-done })
	return seen
}

func check(t *testing.T, target string, opts ...grpc.DialOption) error {
	t.Helper()
	c, err := grpc.NewClient("passthrough:///"+target, opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	_, err = healthpb.NewHealthClient(c).Check(ctx, &healthpb.HealthCheckRequest{})
	return err
}

func TestGRPC(t *testing.T) {
	c := newCluster(t)
	a, b := c.port("a"), c.port("b")
	callers := serveGRPC(t, b)
	for _, demand := range []string{"b", ""} {
		if err := check(t, b.addr(), GRPCDialOptions(a, demand, ProtoPeer)...); err != nil {
			t.Fatal(err)
		}
		if id := <-callers; id != "a" {
			t.Errorf("called by %q", id)
		}
	}
	if err := check(t, b.addr(), GRPCDialOptions(a, "c", ProtoPeer)...); err == nil || !strings.Contains(err.Error(), "is another node") {
		t.Errorf("another node: %v", err)
	}
	if err := check(t, b.addr(), grpc.WithTransportCredentials(insecure.NewCredentials())); err == nil {
		t.Error("a stranger is served")
	}
	if _, ok := PeerID(t.Context()); ok {
		t.Error("a peer without a call")
	}
}
