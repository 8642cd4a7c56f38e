package agent

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/wire/control"
)

var errNotLeading = status.Error(codes.Unavailable, "this planner does not lead")

// The leader dies, nobody leads for a while, then another planner does: the
// worker renews there and never registers again.
func TestFailover(t *testing.T) {
	old, next, third := newScript(7), newScript(7), newScript(7)
	next.fail, third.fail = errNotLeading, errNotLeading
	lns := []string{}
	var stop func()
	for i, s := range []*script{old, next, third} {
		ln := place(t)
		lns = append(lns, ln.Addr().String())
		if end := serve(t, s, ln); i == 0 {
			stop = end
		}
	}
	a := start(t, lns...)
	eventually(t, "renewals at the leader", func() bool { return old.called("renew") > 1 })
	stop()
	asked := third.called("renew")
	eventually(t, "attempts everywhere", func() bool { return third.called("renew") > asked+2 })
	next.edit(func(s *script) { s.fail = nil })
	eventually(t, "renewals at the new leader", func() bool { return next.called("renew") > asked+5 })
	if n := next.called("register") + third.called("register"); n != 0 || !slices.Equal(a.told(), []fleet.Epoch{7}) {
		t.Errorf("%d registrations, OnEpoch %v", n, a.told())
	}
}

// A planner that accepts calls and never answers is left before the lease ends,
// and the feed goes along.
func TestLeavesAStalledPlanner(t *testing.T) {
	first, second := newScript(7), newScript(7)
	first.ttlMS, second.ttlMS = 400, 400
	lnF, lnS := place(t), place(t)
	serve(t, first, lnF)
	serve(t, second, lnS)
	a := start(t, lnF.Addr().String(), lnS.Addr().String())
	eventually(t, "renewals at the first", func() bool { return first.called("renew") > 1 })
	feed, err := a.OpenFeed(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the feed at the first", func() bool { return first.open() == 1 })

	first.edit(func(s *script) { s.stalled = true })
	if _, err := feed.Recv(); !errors.Is(err, ErrMoved) {
		t.Errorf("the feed at a stalled planner: %v, want ErrMoved", err)
	}
	eventually(t, "renewals at the second", func() bool { return second.called("renew") > 3 })
	eventually(t, "the end of the feed", func() bool { return first.open() == 0 })

	ctx, cancel := context.WithCancel(t.Context())
	if feed, err = a.OpenFeed(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the feed at the second", func() bool { return second.open() == 1 })
	cancel()
	if _, err := feed.Recv(); err == nil || errors.Is(err, ErrMoved) {
		t.Errorf("a feed that its owner ends: %v", err)
	}
	eventually(t, "the end of the second feed", func() bool { return second.open() == 0 })
}

// All planners are gone for much longer than a lease. The worker serves on under
// its epoch; when they are back and have expired it, it registers by itself.
func TestAllPlannersGone(t *testing.T) {
	scripts, addrs, stops := []*script{newScript(7), newScript(7)}, []string{}, []func(){}
	for _, s := range scripts {
		s.ttlMS = 50
		ln := place(t)
		addrs, stops = append(addrs, ln.Addr().String()), append(stops, serve(t, s, ln))
	}
	a := start(t, addrs...)
	eventually(t, "the registration", func() bool { return a.Epoch() == 7 })
	for _, stop := range stops {
		stop()
	}
	time.Sleep(500 * time.Millisecond) // ten leases
	if a.Epoch() != 7 || a.Draining() {
		t.Errorf("epoch %d, draining %v without planners", a.Epoch(), a.Draining())
	}
	back := newScript(30)
	back.state = control.LeaseState_LEASE_STATE_UNKNOWN
	serve(t, back, listen(t, addrs[1]))
	eventually(t, "the new epoch", func() bool { return a.Epoch() == 30 })
	back.edit(func(s *script) { s.state = control.LeaseState_LEASE_STATE_HELD })
	eventually(t, "renewals", func() bool { return back.called("renew") > 2 })
	if told := a.told(); !slices.Equal(slices.Compact(told), []fleet.Epoch{7, 30}) {
		t.Errorf("OnEpoch %v", told)
	}
}

// The pauses of a worker that looks for its leader.
func TestBackoff(t *testing.T) {
	cfg := Config{
		Planners: []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"},
		Worker:   fleet.Worker{ID: "w", Role: fleet.RoleBoth, Engine: "cpu", Models: []string{"m"}, URL: "u"},
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Close() }()
	longest := func(failures int) (d time.Duration) {
		a.failures = failures
		for range 200 {
			d = max(d, a.backoff())
		}
		return d
	}
	if d := longest(50); d <= time.Second || d > defaultMaxBackoff {
		t.Errorf("not registered: up to %v", d)
	}
	a.registered = true
	if d := longest(50); d <= leaseBackoff || d > a.every {
		t.Errorf("the lease is over: up to %v", d)
	}
	a.setTimes(1000, 3000)
	if d := longest(50); d > leaseBackoff {
		t.Errorf("within the lease: up to %v", d)
	}
	// A renewal period and all planners stalled fit into a lease.
	if round := 3 * a.renewTimeout(); round+a.every >= a.ttl {
		t.Errorf("a round of %v after a period of %v, in a lease of %v", round, a.every, a.ttl)
	}
	a.setTimes(0, 1)
	if a.renewTimeout() != minRenewTimeout || a.every != time.Second {
		t.Errorf("a lease of 1 ms: %v each %v", a.renewTimeout(), a.every)
	}
	a.setTimes(1<<60, 1<<60) // a planner that lies
	if a.renewTimeout() != callTimeout || a.every != time.Minute {
		t.Errorf("a lease for ever: %v each %v", a.renewTimeout(), a.every)
	}
}
