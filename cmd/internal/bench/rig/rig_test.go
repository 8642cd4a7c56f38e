package rig

import (
	"errors"
	"os/exec"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/cmd/internal/planners"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A process that ends is not waited for.
func TestAProcessThatEnds(t *testing.T) {
	program, err := exec.LookPath("false")
	if err != nil {
		t.Skip("no program that fails:", err)
	}
	c, err := New(Config{Program: program, Dir: t.TempDir(), Gateways: 1, Workers: 1, Script: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	begin := time.Now()
	if err := c.Start(t.Context()); !errors.Is(err, planners.ErrNotReady) || time.Since(begin) > planners.StartTime/2 {
		t.Errorf("%v after %v", err, time.Since(begin))
	}
	if _, _, err := c.Leaders(t.Context()); !errors.Is(err, ErrNoLeader) {
		t.Errorf("%v", err)
	}
	if c.Stop(); c.Planners.Nodes[0].Running() || c.Planners.Nodes[0].PID() != 0 {
		t.Error("it runs after all")
	}
}
