package assemble_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/planners"
	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/lead"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/gpu/agent"
	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/server/control"
)

// member times: a TTL that a busy machine keeps, a grace above every pause.
const (
	memberTTL   = 2 * time.Second
	memberGrace = 3 * time.Second
	memberWait  = 40 * time.Second
)

// testPlanner is a planner's parts joined as a process joins them.
type testPlanner struct {
	store  *raftstore.Store
	leases *lead.Leases
	stop   func()
}

func startTestPlanner(t *testing.T, dir, addr string) (*testPlanner, string) {
	t.Helper()
	registry := &measure.Registry{}
	store, err := raftstore.Open(t.Context(), raftstore.Config{Dir: dir, Registry: registry, WriteDeadline: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	leases := lead.NewLeases(lead.Config{TTL: memberTTL, RenewEvery: 200 * time.Millisecond, Grace: memberGrace})
	srv, err := control.New(control.Config{Planner: store, Leases: leases})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var tasks sync.WaitGroup
	tasks.Go(func() {
		if err := srv.Serve(ln); err != nil {
			t.Errorf("control port: %v", err)
		}
	})
	tasks.Go(func() {
		lead.Run(ctx, lead.Duties{Planner: store, Leases: leases, Clock: clock.Real{}, Registry: registry})
	})
	p := &testPlanner{store: store, leases: leases}
	p.stop = sync.OnceFunc(func() {
		bound, done := context.WithTimeout(ctx, memberWait)
		defer done()
		srv.Close(bound)
		cancel()
		tasks.Wait()
		if err := store.Close(context.WithoutCancel(bound)); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
	t.Cleanup(p.stop)
	return p, ln.Addr().String()
}

type testMember struct {
	*agent.Agent
	die func() // ends renewals without a good-bye
}

func startMember(t *testing.T, id, planner string) testMember {
	t.Helper()
	a, err := agent.New(agent.Config{
		Planners: []string{planner},
		Worker: fleet.Worker{
			ID: fleet.WorkerID(id), Role: fleet.RoleBoth, Engine: "scripted", Models: []string{"m"}, URL: "http://127.0.0.1:1",
		},
		Stats:      func() fleet.Stats { return fleet.Stats{Running: fleet.Report(1)} },
		MaxBackoff: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := a.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	m := testMember{Agent: a, die: sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})}
	t.Cleanup(m.die)
	return m
}

// anAddress is one that nobody listens on, and that no client gets meanwhile.
func anAddress(t *testing.T) string {
	t.Helper()
	ports, err := planners.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0])
}

func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(memberWait); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", memberWait, what)
		}
	}
}

// Workers outlive a planner that restarts on the same directory: they come back
// under the epochs they had, nobody is expired for the time it was away, and
// one that dies afterwards is.
func TestMembershipThroughAPlannerRestart(t *testing.T) {
	dir := t.TempDir()
	planner, addr := startTestPlanner(t, dir, anAddress(t))
	var members []testMember
	for i := range 4 {
		members = append(members, startMember(t, fmt.Sprintf("w%d", i), addr))
	}
	epochs := make([]fleet.Epoch, len(members))
	for i, m := range members {
		until(t, "registration", func() bool { return m.Epoch() != 0 })
		epochs[i] = m.Epoch()
	}
	planner.stop()
	time.Sleep(memberTTL + 500*time.Millisecond) // every lease has run out by now
	planner, _ = startTestPlanner(t, dir, addr)
	for i, m := range members {
		id := fleet.WorkerID(fmt.Sprintf("w%d", i))
		until(t, "a renewal after the restart", func() bool {
			_, ok := planner.leases.Samples().Find(id, epochs[i])
			return ok
		})
		if m.Epoch() != epochs[i] || planner.store.View().Current(id, epochs[i]) < 0 {
			t.Errorf("%s has epoch %d, had %d before the restart", id, m.Epoch(), epochs[i])
		}
	}
	members[0].die()
	until(t, "expiry of the dead worker", func() bool { return planner.store.View().Find("w0") < 0 })
	if err := members[1].Drain(t.Context(), func(context.Context) error {
		v := planner.store.View()
		if i := v.Find("w1"); i < 0 || !v.Workers[i].Draining {
			t.Error("the planner does not know that w1 drains")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	view, err := planner.store.Read(t.Context(), raftstore.Linearizable())
	if err != nil || len(view.Workers) != 2 || view.Find("w2") < 0 || view.Find("w3") < 0 {
		t.Errorf("members at the end: %+v, %v", view, err)
	}
}
