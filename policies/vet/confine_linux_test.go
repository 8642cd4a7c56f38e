package vet_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/policies/vet"
)

// yield prints the priorities of all threads of a process that is confined.
func yield() {
	for range 4 {
		go func() { _ = syscall.Pause() }() // each takes a thread
	}
	time.Sleep(50 * time.Millisecond)
	if err := vet.Confine(1 << 30); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	stats, _ := filepath.Glob("/proc/self/task/*/stat")
	for _, name := range stats {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		fmt.Fprintln(os.Stdout, strings.Fields(rest)[16]) // the 19th of all
	}
	os.Exit(0)
}

// Threads that run before the child is confined yield, too.
func TestAllThreadsYield(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), self, "yield")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	nices := strings.Fields(string(out))
	for _, nice := range nices {
		if nice == "0" {
			t.Errorf("threads have %v", nices)
		}
	}
	if len(nices) < 4 {
		t.Errorf("%d threads", len(nices))
	}
}
