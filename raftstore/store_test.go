package raftstore

import (
	"context"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/planner"
)

func testConfig(dir string) Config {
	return Config{
		Dir: dir, InMemory: dir == "", NodeID: "n1", Registry: &measure.Registry{},
		Heartbeat: 50 * time.Millisecond, Lease: 25 * time.Millisecond, WriteDeadline: 20 * time.Second,
	}
}

func openLeading(t *testing.T, cfg Config) *Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeStore(t, s) })
	if err := s.WaitLeader(ctx); err != nil {
		t.Fatal(err)
	}
	return s
}

func closeStore(t *testing.T, s *Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func worker(id, incarnation string) fleet.Worker {
	return fleet.Worker{
		ID: fleet.WorkerID(id), Incarnation: incarnation, Role: fleet.RoleBoth, Engine: "cpu",
		Models: []string{"m"}, URL: "http://127.0.0.1:1",
	}
}

func TestStateSurvivesReopening(t *testing.T) {
	dir := t.TempDir()
	s := openLeading(t, testConfig(dir))
	res, err := s.Propose(t.Context(), planner.RegisterWorker{Worker: worker("w1", "a")})
	if err != nil || res.Err() != nil {
		t.Fatal(res, err)
	}
	if v := s.View(); v.Current("w1", res.Epoch) < 0 {
		t.Fatalf("w1 of epoch %d is not in the view: %+v", res.Epoch, v.Workers)
	}
	closeStore(t, s)

	s = openLeading(t, testConfig(dir))
	again, err := s.Propose(t.Context(), planner.RegisterWorker{Worker: worker("w1", "a")})
	if err != nil || again.Epoch != res.Epoch || again.Changed {
		t.Fatalf("registering again after a restart: %+v, %v; want epoch %d unchanged", again, err, res.Epoch)
	}
}
