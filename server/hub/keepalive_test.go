package hub

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
)

// Options that a listener needs, as those of the nodes' port, leave the hub its
// own bounds: a connection without a stream is closed.
func TestIdleConnectionsEndWhateverTheOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := NewServer(ServerConfig{
			Leading: func() bool { return true }, View: func() *fleet.View { return &fleet.View{} }, Registry: &measure.Registry{},
			Options: []grpc.ServerOption{grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Hour})},
		})
		if err != nil {
			t.Fatal(err)
		}
		ln := bufconn.Listen(1 << 16)
		var serving sync.WaitGroup
		serving.Go(func() { _ = s.Serve(ln) })
		conn, err := grpc.NewClient("passthrough:///hub", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(), grpc.WithIdleTimeout(0),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		conn.Connect()
		pass(9 * patience)
		if state := conn.GetState(); state != connectivity.Ready {
			t.Errorf("early: %v", state)
		}
		pass(2 * patience)
		if state := conn.GetState(); state == connectivity.Ready {
			t.Error("an idle connection is kept")
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		s.Close(t.Context())
		serving.Wait()
	})
}
