package hub

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/wire/hub"
)

// liar is a leader that answers each gateway with the same messages.
type liar struct {
	hub.UnimplementedHubServer
	says []*hub.ExchangeResponse
	cut  bool // after the last
}

func (l liar) Exchange(stream grpc.BidiStreamingServer[hub.ExchangeRequest, hub.ExchangeResponse]) error {
	for _, m := range l.says {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	if !l.cut {
		<-stream.Context().Done()
	}
	return nil
}

// A leader that sends what no leader can mean is left, and nothing of the message
// counts. One that goes on lying is asked at most each few hundred milliseconds.
func TestLeaderLies(t *testing.T) {
	good := &hub.Loads{Whole: true, Epoch: []uint64{1}, Prefill: []uint32{2}, Decode: []uint32{0}, Prompt: []uint64{1}, Context: []uint64{1}}
	bad := &hub.Loads{Epoch: []uint64{1}, Prefill: []uint32{7}}
	samples := &hub.Samples{Epoch: []uint64{1}, AgeUs: []uint64{1 << 60}, Known: []uint32{0}, Running: []float64{0}, Waiting: []float64{0}, KvBlocksFree: []float64{0}, PrefillTokensPerS: []float64{0}, DecodeStepS: []float64{0}}
	tests := []struct {
		name   string
		leader liar
		others int
		cuts   bool
	}{
		{"short columns", liar{says: []*hub.ExchangeResponse{{Loads: bad}}}, 0, true},
		{"impossible samples", liar{says: []*hub.ExchangeResponse{{Loads: good, Samples: samples}}}, 0, true},
		{"a lie after the truth", liar{says: []*hub.ExchangeResponse{{Loads: good, Gateways: 2}, {Loads: bad, Gateways: 1 << 30}}}, 2, true},
		{"impossible counts of words and gateways", liar{says: []*hub.ExchangeResponse{{Loads: good, Gateways: 1 << 31, Heard: 1 << 63}}}, 2, false},
		{"hangs up", liar{cut: true}, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ln := bufconn.Listen(1 << 16)
				server := grpc.NewServer()
				hub.RegisterHubServer(server, tt.leader)
				view, registry := workers(2), &measure.Registry{}
				n := &node{table: load.NewTable(registry), registry: registry}
				slot := n.table.Columns(view).Slots[0]
				defer slot.Reserve(load.Prefill, load.Work{Prompt: 5}).Close()
				var dials atomic.Int64
				link, err := NewLink(LinkConfig{
					Gateway: "g", Table: n.table, View: func() *fleet.View { return view }, Registry: registry,
					Leader: func() (string, string, bool) { return "x", "1", false },
					Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
						dials.Add(1)
						return ln.DialContext(ctx)
					},
				})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				wg.Go(func() { _ = server.Serve(ln) })
				wg.Go(func() { link.Run(ctx) })
				pass(900 * time.Millisecond)
				if got := slot.Others(); got != tt.others {
					t.Errorf("%d requests of others, want %d", got, tt.others)
				}
				if cuts := n.metric(measure.HubCuts.Name, "gateway", "malformed"); (cuts > 0) != tt.cuts {
					t.Errorf("%v streams cut", cuts)
				}
				before := dials.Load()
				pass(9 * time.Second)
				if n := dials.Load() - before; n > 95 {
					t.Errorf("%d attempts in 9 s", n)
				}
				cancel()
				server.Stop()
				wg.Wait()
			})
		})
	}
}

func TestWhatIsRequired(t *testing.T) {
	if _, err := NewServer(ServerConfig{}); err == nil {
		t.Error("a server of nothing")
	}
	if _, err := NewLink(LinkConfig{}); err == nil {
		t.Error("a link of nothing")
	}
}
