package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/wire/control"
	"github.com/yardmaster/yardmaster/core/wire/control/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second // for what must happen, on a busy machine

// script is a planner whose answers the test writes.
type script struct {
	rpc.UnimplementedControlServer

	mu       sync.Mutex
	epoch    uint64
	state    control.LeaseState
	draining bool
	fail     error
	calls    []string
	register *control.RegisterRequest // the last
	renewal  *control.RenewRequest    // the last
	ttlMS    int64
	stalled  bool // calls are accepted and never answered
	feeds    int  // open
	taken    bool // another worker has the id
}

func newScript(epoch uint64) *script {
	return &script{epoch: epoch, state: control.LeaseState_LEASE_STATE_HELD}
}

func (s *script) edit(f func(*script)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

func (s *script) called(name string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if c == name {
			n++
		}
	}
	return n
}

func (s *script) note(call string) error {
	s.calls = append(s.calls, call)
	return s.fail
}

// stall keeps a call for as long as its caller waits, if the script says so.
// refuse notes a call whose worker's id is another's.
func (s *script) refuse(call string) error {
	if err := s.note(call); err != nil {
		return err
	}
	return status.Error(codes.AlreadyExists, "taken")
}

func (s *script) stall(ctx context.Context) {
	s.mu.Lock()
	stalled := s.stalled
	s.mu.Unlock()
	if stalled {
		<-ctx.Done()
	}
}

func (s *script) Feed(stream grpc.BidiStreamingServer[control.FeedRequest, control.FeedResponse]) error {
	s.edit(func(s *script) { s.feeds++ })
	defer s.edit(func(s *script) { s.feeds-- })
	<-stream.Context().Done()
	return nil
}

func (s *script) open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.feeds
}

func (s *script) Register(ctx context.Context, r *control.RegisterRequest) (*control.RegisterResponse, error) {
	s.stall(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.register = r
	if s.taken && r.GetIfAbsent() {
		return nil, s.refuse("register")
	}
	return &control.RegisterResponse{Epoch: s.epoch, ClusterId: "c", RenewEveryMs: 10, LeaseTtlMs: s.ttlMS}, s.note("register")
}

func (s *script) Renew(ctx context.Context, r *control.RenewRequest) (*control.RenewResponse, error) {
	s.stall(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renewal = r
	return &control.RenewResponse{State: s.state, RenewEveryMs: 10, LeaseTtlMs: s.ttlMS, Draining: s.draining}, s.note("renew")
}

func (s *script) Drain(context.Context, *control.DrainRequest) (*control.DrainResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &control.DrainResponse{}, s.note("drain")
}

func (s *script) Leave(context.Context, *control.LeaveRequest) (*control.LeaveResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &control.LeaveResponse{}, s.note("leave")
}

// place opens a port that a planner can leave and come back to: one that the system
// chooses may be a client's by then.
func place(t *testing.T) net.Listener {
	t.Helper()
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 12000+rand.IntN(18000))
		if ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", addr); err == nil {
			return ln
		}
	}
	t.Fatal("no port is free")
	return nil
}

func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// serve runs the script on ln; the returned function stops it.
func serve(t *testing.T, s *script, ln net.Listener) (stop func()) {
	t.Helper()
	srv := grpc.NewServer()
	rpc.RegisterControlServer(srv, s)
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(ln) })
	stop = sync.OnceFunc(func() {
		srv.Stop()
		wg.Wait()
	})
	t.Cleanup(stop)
	return stop
}

type running struct {
	*Agent
	logs   *lockedBuffer
	mu     sync.Mutex
	epochs []fleet.Epoch
	asked  int
}

func (r *running) told() []fleet.Epoch {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.epochs)
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func start(t *testing.T, planners ...string) *running {
	t.Helper()
	r := &running{logs: &lockedBuffer{}}
	a, err := New(Config{
		Planners: planners,
		Worker:   fleet.Worker{ID: "w", Role: fleet.RoleBoth, Engine: "cpu", Models: []string{"m"}, URL: "http://127.0.0.1:1"},
		Stats:    func() fleet.Stats { return fleet.Stats{Running: fleet.Report(0), Waiting: fleet.Report(math.NaN())} },
		OnEpoch: func(e fleet.Epoch) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.epochs = append(r.epochs, e)
		},
		OnDrain: func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.asked++
		},
		Logger:     slog.New(slog.NewTextHandler(r.logs, nil)),
		MinBackoff: 2 * time.Millisecond, MaxBackoff: 20 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Agent = a
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := a.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func TestRegistersAndRenewsWithStats(t *testing.T) {
	s, ln := newScript(7), place(t)
	serve(t, s, ln)
	a := start(t, ln.Addr().String())
	eventually(t, "three renewals", func() bool { return s.called("renew") >= 3 })
	if a.Epoch() != 7 || s.called("register") != 1 || !slices.Equal(a.told(), []fleet.Epoch{7}) {
		t.Errorf("epoch %d, %d registrations, OnEpoch %v", a.Epoch(), s.called("register"), a.told())
	}
	s.edit(func(s *script) {
		if s.register.GetWorker().GetIncarnation() != a.Incarnation() || len(a.Incarnation()) < 16 || s.register.GetIfAbsent() {
			t.Errorf("registration %v", s.register)
		}
		stats := control.ToStats(s.renewal.GetStats())
		if s.renewal.GetEpoch() != 7 || stats.Running != fleet.Report(0) || !math.IsNaN(stats.Waiting.Value) || stats.KVBlocksFree.Known {
			t.Errorf("renewal %v", s.renewal)
		}
	})
}

// deserted is an address where nobody listens.
func deserted(t *testing.T) string {
	t.Helper()
	ln := place(t)
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	return ln.Addr().String()
}

func TestOneCauseIsOneComplaint(t *testing.T) {
	addr, logs := deserted(t), &lockedBuffer{}
	a, err := New(Config{
		Planners: []string{addr}, Worker: fleet.Worker{ID: "w", Role: fleet.RoleBoth, Engine: "cpu", Models: []string{"m"}, URL: "http://127.0.0.1:1"},
		Logger: slog.New(slog.NewTextHandler(logs, nil)), MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}()
	for range 40 {
		a.step(t.Context())
	}
	if n := strings.Count(logs.String(), "planner not reached"); n == 0 || n > 4 {
		t.Errorf("%d complaints about one cause:\n%s", n, logs)
	}
	if want := "planner " + addr + " unreachable: connection refused\""; !strings.Contains(logs.String(), want) || strings.Contains(logs.String(), "rpc error") {
		t.Errorf("%q is not the complaint:\n%s", want, logs)
	}
}

func TestOutlivesThePlanner(t *testing.T) {
	addr := deserted(t)
	a := start(t, addr)
	complaints := func() int { return strings.Count(a.logs.String(), "planner not reached") }
	eventually(t, "a complaint", func() bool { return complaints() > 0 })
	if a.Epoch() != 0 {
		t.Errorf("epoch %d without a planner", a.Epoch())
	}

	s := newScript(7)
	stop := serve(t, s, listen(t, addr))
	eventually(t, "the registration", func() bool { return a.Epoch() == 7 })
	before := complaints()
	stop()
	eventually(t, "another complaint", func() bool { return complaints() > before })
	if a.Epoch() != 7 {
		t.Errorf("epoch %d while the planner is away, want 7 still", a.Epoch())
	}
	// The planner comes back with its state: nothing changes.
	same := newScript(7)
	stop = serve(t, same, listen(t, addr))
	eventually(t, "renewals at the same planner", func() bool { return same.called("renew") >= 2 })
	if same.called("register") != 0 || !slices.Equal(a.told(), []fleet.Epoch{7}) {
		t.Errorf("%d registrations, OnEpoch %v", same.called("register"), a.told())
	}
	stop()
	// It comes back having forgotten everything: a new epoch.
	other := newScript(3)
	other.state = control.LeaseState_LEASE_STATE_UNKNOWN
	serve(t, other, listen(t, addr))
	eventually(t, "the new epoch", func() bool { return a.Epoch() == 3 })
	other.edit(func(s *script) { s.state = control.LeaseState_LEASE_STATE_HELD })
	if !slices.Equal(a.told(), []fleet.Epoch{7, 3}) {
		t.Errorf("OnEpoch %v", a.told())
	}
}

func TestTriesPlannersInTurn(t *testing.T) {
	follower, leader := newScript(1), newScript(9)
	follower.fail = status.Error(codes.Unavailable, "this planner does not lead")
	lnF, lnL := place(t), place(t)
	serve(t, follower, lnF)
	serve(t, leader, lnL)
	// The third accepts connections and says nothing.
	mute := place(t)
	t.Cleanup(func() { _ = mute.Close() })
	a := start(t, mute.Addr().String(), lnF.Addr().String(), lnL.Addr().String())
	eventually(t, "registration at the leader", func() bool { return a.Epoch() == 9 })
	asked := follower.called("register") + follower.called("renew")
	eventually(t, "renewals at the leader", func() bool { return leader.called("renew") > 5 })
	if n := follower.called("register") + follower.called("renew"); n != asked {
		t.Errorf("the follower was asked %d times after the leader was known", n-asked)
	}
	// Leadership moves.
	follower.edit(func(s *script) { s.fail, s.epoch = nil, 9 })
	leader.edit(func(s *script) { s.fail = status.Error(codes.Unavailable, "this planner does not lead") })
	eventually(t, "renewals at the new leader", func() bool { return follower.called("renew") > 5 })
}

func TestGivesWayToAnotherWorkerOfItsID(t *testing.T) {
	s, ln := newScript(7), place(t)
	serve(t, s, ln)
	a := start(t, ln.Addr().String())
	eventually(t, "the registration", func() bool { return a.Epoch() == 7 })
	s.edit(func(s *script) {
		s.state = control.LeaseState_LEASE_STATE_SUPERSEDED
		s.taken = true
	})
	eventually(t, "giving way", func() bool { return a.Epoch() == 0 })
	before := s.called("register")
	eventually(t, "polite attempts", func() bool { return s.called("register") > before+2 })
	s.edit(func(s *script) {
		if !s.register.GetIfAbsent() {
			t.Error("a superseded worker takes the id back")
		}
		s.taken, s.epoch, s.state = false, 12, control.LeaseState_LEASE_STATE_HELD
	})
	eventually(t, "coming back", func() bool { return a.Epoch() == 12 })
	if n := strings.Count(a.logs.String(), "another worker has registered under this id"); n != 1 {
		t.Errorf("%d complaints:\n%s", n, a.logs.String())
	}
}

// A restored snapshot may have this very incarnation under a later epoch.
func TestTheStateWentBack(t *testing.T) {
	s, ln := newScript(7), place(t)
	serve(t, s, ln)
	a := start(t, ln.Addr().String())
	eventually(t, "the registration", func() bool { return a.Epoch() == 7 })
	s.edit(func(s *script) { s.state, s.epoch = control.LeaseState_LEASE_STATE_SUPERSEDED, 90 })
	eventually(t, "the other epoch", func() bool { return a.Epoch() == 90 })
	s.edit(func(s *script) { s.state = control.LeaseState_LEASE_STATE_HELD })
	for _, e := range a.told() {
		if e == 0 {
			t.Errorf("OnEpoch %v", a.told())
		}
	}
	eventually(t, "a word of it", func() bool { return strings.Contains(a.logs.String(), "registered again") })
	if logs := a.logs.String(); strings.Contains(logs, "another worker") {
		t.Error(logs)
	}
}

func TestDrain(t *testing.T) {
	s, ln := newScript(7), place(t)
	serve(t, s, ln)
	a := start(t, ln.Addr().String())
	eventually(t, "the registration", func() bool { return a.Epoch() == 7 })
	err := a.Drain(t.Context(), func(context.Context) error {
		if s.called("drain") != 1 || s.called("leave") != 0 || !a.Draining() {
			t.Errorf("while draining: %d drains, %d leaves", s.called("drain"), s.called("leave"))
		}
		before := s.called("renew")
		eventually(t, "renewals while draining", func() bool { return s.called("renew") > before })
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.edit(func(s *script) {
		if last := s.calls[len(s.calls)-1]; last != "leave" {
			t.Errorf("the last call was %s", last)
		}
	})
}

func TestRegistersAsDrainingWhenForgottenMeanwhile(t *testing.T) {
	s, ln := newScript(7), place(t)
	serve(t, s, ln)
	a := start(t, ln.Addr().String())
	eventually(t, "the registration", func() bool { return a.Epoch() == 7 })
	err := a.Drain(t.Context(), func(context.Context) error {
		s.edit(func(s *script) { s.state, s.epoch = control.LeaseState_LEASE_STATE_UNKNOWN, 8 })
		eventually(t, "registering again", func() bool { return s.called("register") > 1 })
		s.edit(func(s *script) {
			s.state = control.LeaseState_LEASE_STATE_HELD
			if !s.register.GetWorker().GetDraining() {
				t.Error("registered as ready while draining")
			}
		})
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestDrainWithoutAPlannerIsBounded(t *testing.T) {
	s, ln := newScript(7), place(t)
	stop := serve(t, s, ln)
	a := start(t, ln.Addr().String())
	eventually(t, "the registration", func() bool { return a.Epoch() == 7 })
	stop()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	idled := false
	err := a.Drain(ctx, func(context.Context) error {
		idled = true
		return errors.New("two requests were cut")
	})
	if !idled || err == nil || !strings.Contains(err.Error(), "two requests were cut") || !strings.Contains(err.Error(), "leave") {
		t.Errorf("idled %v, error %v", idled, err)
	}
}

func TestPlannerAsksToDrain(t *testing.T) {
	s, ln := newScript(7), place(t)
	serve(t, s, ln)
	a := start(t, ln.Addr().String())
	eventually(t, "the registration", func() bool { return a.Epoch() == 7 })
	s.edit(func(s *script) { s.draining = true })
	eventually(t, "draining", a.Draining)
	before := s.called("renew")
	eventually(t, "more renewals", func() bool { return s.called("renew") > before+2 })
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.asked != 1 || s.called("drain") != 0 {
		t.Errorf("OnDrain called %d times, %d drain calls", a.asked, s.called("drain"))
	}
}

func TestConfigFaults(t *testing.T) {
	_, err := New(Config{MinBackoff: 2, MaxBackoff: 1})
	for _, want := range []string{"planner addresses", "backoff", "worker id", "no model"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	ok := Config{
		Planners: []string{"127.0.0.1:1"},
		Worker:   fleet.Worker{ID: "w", Role: fleet.RoleBoth, Engine: "cpu", Models: []string{"m"}, URL: "u"},
	}
	a, err := New(ok)
	if err != nil {
		t.Fatal(err)
	}
	// Never run: draining and closing still end.
	if err := a.Drain(t.Context(), func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

func TestJitterStaysInItsHalf(t *testing.T) {
	for range 1000 {
		if d := jitter(100); d < 50 || d > 100 {
			t.Fatalf("jitter(100) = %d", d)
		}
	}
}
