package control

import (
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	"github.com/yardmaster/yardmaster/core/lead"
)

// A caller that no longer answers is let go, at both doors and whatever the
// options of the members' one say.
func TestSilentCallersAreLetGo(t *testing.T) {
	for name, door := range map[string]func(*Server, net.Listener){
		"members": func(s *Server, ln net.Listener) { _ = s.ServePeers(ln) },
		"workers": func(s *Server, ln net.Listener) { _ = s.grpc.Serve(ln) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := New(Config{
					Planner: following{}, Leases: lead.NewLeases(lead.Config{}), AllowPlaintext: true,
					PeerOptions: []grpc.ServerOption{grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Hour, Timeout: time.Hour})},
				})
				if err != nil {
					t.Fatal(err)
				}
				ln := bufconn.Listen(1 << 16)
				var serving sync.WaitGroup
				serving.Go(func() { door(s, ln) })
				conn, err := ln.DialContext(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				// The beginning of HTTP/2, with empty settings, and then no word.
				if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				_, _ = io.Copy(io.Discard, conn) // until it is closed
				if took := time.Since(began); took > time.Minute {
					t.Errorf("held for %v", took)
				}
				_ = conn.Close()
				s.Close(t.Context())
				serving.Wait()
			})
		})
	}
}
