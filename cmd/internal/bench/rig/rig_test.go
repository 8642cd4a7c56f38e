package rig

import (
	"errors"
	"os/exec"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A process that ends is not waited for, and what it said is told.
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
	if err := c.Start(t.Context()); !errors.Is(err, ErrNotReady) || time.Since(begin) > StartTime/2 {
		t.Errorf("%v after %v", err, time.Since(begin))
	}
	if _, _, err := c.Leaders(t.Context()); !errors.Is(err, ErrNoLeader) {
		t.Errorf("%v", err)
	}
	if c.Stop(); c.Planners[0].Running() || c.Planners[0].PID() != 0 {
		t.Error("it runs after all")
	}
}

func TestPortsDiffer(t *testing.T) {
	ports, err := freePorts(30)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(ports)
	if n := len(slices.Compact(ports)); n != 30 || ports[0] < firstPort || ports[29] >= lastPort {
		t.Errorf("%d ports: %v", n, ports)
	}
}
