package control

import (
	"context"
	"crypto/tls"
	"errors"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/lead"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/wire/control"
	"github.com/yardmaster/yardmaster/core/wire/control/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memoryPlanner is the state machine without Raft.
type memoryPlanner struct {
	mu       sync.Mutex
	machine  *planner.Machine
	index    uint64
	fail     error
	panics   bool
	follower atomic.Bool
	deadline atomic.Bool // whether the last proposal had one
}

func (p *memoryPlanner) Propose(ctx context.Context, cmd planner.Command) (planner.Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, has := ctx.Deadline()
	p.deadline.Store(has)
	if p.panics {
		panic("invariant broken")
	}
	if p.fail != nil {
		return planner.Result{}, p.fail
	}
	entry, err := planner.Encode(planner.RequestID{}, cmd)
	if err != nil {
		return planner.Result{}, err
	}
	p.index++
	return p.machine.Apply(p.index, entry)
}

func (p *memoryPlanner) View() *fleet.View { return p.machine.View() }
func (p *memoryPlanner) Leading() bool     { return !p.follower.Load() }
func (p *memoryPlanner) ClusterID() string { return "c1" }

func (p *memoryPlanner) set(fail error, panics bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail, p.panics = fail, panics
}

type rig struct {
	planner *memoryPlanner
	leases  *lead.Leases
	prefix  *memoryPrefix
	server  *Server
	client  rpc.ControlClient
}

func newRig(t *testing.T) *rig {
	t.Helper()
	p := &memoryPlanner{machine: planner.New()}
	leases := lead.NewLeases(lead.Config{TTL: 3 * time.Second, RenewEvery: time.Second})
	leases.Step(time.Unix(100, 0), p.View(), true) // core/lead leads here
	index := &memoryPrefix{state: prefix.NewState(prefix.Options{})}
	srv, err := New(Config{Planner: p, Leases: leases, Prefix: index, Clock: clock.NewVirtual(time.Unix(100, 0))})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := srv.Serve(ln); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		srv.Close(context.WithoutCancel(t.Context()))
		wg.Wait()
	})
	return &rig{planner: p, leases: leases, prefix: index, server: srv, client: rpc.NewControlClient(conn)}
}

func workerMessage(incarnation string) *control.Worker {
	return &control.Worker{
		Id: "w", Incarnation: incarnation, Role: uint32(fleet.RoleBoth), Engine: "cpu", Models: []string{"m"},
		Url: "http://127.0.0.1:1", Epoch: 12345,
	}
}

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s: %v (%v), want %v", what, got, err, want)
	}
}

func TestLifeOfAWorker(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	reg, err := r.client.Register(ctx, &control.RegisterRequest{Worker: workerMessage("a")})
	if err != nil || reg.GetEpoch() != 1 || reg.GetClusterId() != "c1" || reg.GetLeaseTtlMs() != 3000 || reg.GetRenewEveryMs() != 1000 {
		t.Fatalf("Register = %v, %v", reg, err)
	}
	if !r.planner.deadline.Load() {
		t.Error("a call without a deadline was given none")
	}
	nan, zero := math.NaN(), 0.0
	renew, err := r.client.Renew(ctx, &control.RenewRequest{Id: "w", Epoch: 1, Stats: &control.Stats{Running: &zero, Waiting: &nan}})
	if err != nil || renew.GetState() != control.LeaseState_LEASE_STATE_HELD || renew.GetDraining() {
		t.Fatalf("Renew = %v, %v", renew, err)
	}
	s, ok := r.leases.Samples().Find("w", 1)
	if !ok || s.Stats.Running != fleet.Report(0) || !math.IsNaN(s.Stats.Waiting.Value) || s.Stats.KVBlocksFree.Known {
		t.Errorf("sample %+v, %v", s, ok)
	}
	_, err = r.client.Renew(ctx, &control.RenewRequest{Id: "w", Epoch: 99})
	wantCode(t, "a renewal of an epoch to hear of", err, codes.Unavailable)
	if _, err := r.client.Drain(ctx, &control.DrainRequest{Id: "w", Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	if renew, err = r.client.Renew(ctx, &control.RenewRequest{Id: "w", Epoch: 1}); err != nil || !renew.GetDraining() {
		t.Errorf("a renewal while draining: %v, %v", renew, err)
	}
	next, err := r.client.Register(ctx, &control.RegisterRequest{Worker: workerMessage("b")})
	if err != nil {
		t.Fatal(err)
	}
	renew, err = r.client.Renew(ctx, &control.RenewRequest{Id: "w", Epoch: 1})
	if err != nil || renew.GetState() != control.LeaseState_LEASE_STATE_SUPERSEDED {
		t.Errorf("a superseded renewal: %v, %v", renew, err)
	}
	_, err = r.client.Register(ctx, &control.RegisterRequest{Worker: workerMessage("a"), IfAbsent: true})
	wantCode(t, "polite registration", err, codes.AlreadyExists)
	_, err = r.client.Drain(ctx, &control.DrainRequest{Id: "w", Epoch: 1})
	wantCode(t, "drain of a stale epoch", err, codes.NotFound)
	for range 2 { // leaving twice is leaving
		if _, err := r.client.Leave(ctx, &control.LeaveRequest{Id: "w", Epoch: next.GetEpoch()}); err != nil {
			t.Error(err)
		}
	}
	renew, err = r.client.Renew(ctx, &control.RenewRequest{Id: "w", Epoch: next.GetEpoch()})
	if err != nil || renew.GetState() != control.LeaseState_LEASE_STATE_UNKNOWN {
		t.Errorf("a renewal after leaving: %v, %v", renew, err)
	}
}

func TestRefusals(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	_, err := r.client.Register(ctx, &control.RegisterRequest{})
	wantCode(t, "no worker", err, codes.InvalidArgument)
	if !strings.Contains(status.Convert(err).Message(), "no model is served") {
		t.Errorf("the refusal does not say why: %v", err)
	}
	bad := workerMessage("a")
	bad.Role = 300
	_, err = r.client.Register(ctx, &control.RegisterRequest{Worker: bad})
	wantCode(t, "role 300", err, codes.InvalidArgument)
	big := workerMessage("a")
	big.Url = strings.Repeat("u", 2<<20)
	_, err = r.client.Register(ctx, &control.RegisterRequest{Worker: big})
	wantCode(t, "2 MiB", err, codes.ResourceExhausted)
	_, err = r.client.Drain(ctx, &control.DrainRequest{})
	wantCode(t, "drain of nobody", err, codes.InvalidArgument)

	r.planner.set(errors.New("dial 10.0.0.7: secret"), false)
	_, err = r.client.Register(ctx, &control.RegisterRequest{Worker: workerMessage("a")})
	wantCode(t, "no commit", err, codes.Unavailable)
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("an inner cause reached the worker: %v", err)
	}
	r.planner.set(nil, true)
	_, err = r.client.Register(ctx, &control.RegisterRequest{Worker: workerMessage("a")})
	wantCode(t, "a panic", err, codes.Internal)
	r.planner.set(nil, false)

	r.planner.follower.Store(true)
	_, err = r.client.Register(ctx, &control.RegisterRequest{Worker: workerMessage("a")})
	wantCode(t, "register at a follower", err, codes.Unavailable)
	_, err = r.client.Renew(ctx, &control.RenewRequest{Id: "w", Epoch: 1})
	wantCode(t, "renew at a follower", err, codes.Unavailable)
}

type anywhere struct{ net.Listener }

func (anywhere) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1} }

func TestPlainTextStaysOnLoopback(t *testing.T) {
	listen := func() net.Listener {
		ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return anywhere{ln}
	}
	newServer := func(edit func(*Config)) *Server {
		cfg := Config{Planner: &memoryPlanner{machine: planner.New()}, Leases: lead.NewLeases(lead.Config{})}
		edit(&cfg)
		srv, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return srv
	}
	if err := newServer(func(*Config) {}).Serve(listen()); !errors.Is(err, ErrPlaintext) {
		t.Errorf("plain text beyond loopback: %v", err)
	}
	for name, edit := range map[string]func(*Config){
		"tls":     func(c *Config) { c.TLS = &tls.Config{MinVersion: tls.VersionTLS13} },
		"allowed": func(c *Config) { c.AllowPlaintext = true },
	} {
		srv := newServer(edit)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := srv.Serve(listen()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		srv.Close(t.Context())
		wg.Wait()
	}
	if _, err := New(Config{}); err == nil {
		t.Error("a server without a planner")
	}
}
