package assemble

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/fleet"
)

func quiet() Process { return NewProcess("test", slog.New(slog.DiscardHandler)) }

func settings(t *testing.T) *config.Config {
	t.Helper()
	e, err := config.Load(config.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	e.Config.Planner.Listen = "127.0.0.1:0"
	e.Config.Gateway.Listen = "127.0.0.1:0"
	return &e.Config
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never came true: %s", what)
		}
	}
}

func TestAWorkerJoinsDrainsAndLeaves(t *testing.T) {
	c := settings(t)
	p, err := StartPlanner(t.Context(), quiet(), c.Planner, config.TLS{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	c.Worker.Engine, c.Worker.Planner, c.Worker.Labels, c.Worker.ID = "scripted", p.Addr(), []string{"zone=a"}, "w0"
	w, err := StartWorker(t.Context(), quiet(), c.Worker, config.TLS{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the worker is registered", func() bool { return p.View().Find("w0") >= 0 && w.Epoch() != 0 })
	got := p.View().Workers[0]
	if got.Epoch != w.Epoch() || got.Role != fleet.RoleBoth || got.URL == "" || len(got.Models) != 1 || got.Labels[0] != (fleet.Label{Key: "zone", Value: "a"}) {
		t.Errorf("registered as %+v", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := w.Close(ctx); err != nil {
		t.Error(err)
	}
	if n := len(p.View().Workers); n != 0 {
		t.Errorf("%d workers after it left", n)
	}
}
