package timerslack

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain is the program under test when it is called as one.
func TestMain(m *testing.M) {
	if len(os.Args) != 3 || os.Args[1] != "raise" {
		os.Exit(m.Run())
	}
	slack, err := time.ParseDuration(os.Args[2])
	if err == nil {
		err = Raise(slack)
	}
	runtime.LockOSThread()
	has, _ := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	_, _ = fmt.Fprintf(os.Stdout, "%d %v %q %v %q", os.Getpid(), time.Duration(has), os.Getenv(again), err, os.Args[2])
}

// TestRaise: the process stays the one that was started, its threads have the
// slack, and who is started by it is not told that it happened.
func TestRaise(t *testing.T) {
	for _, tt := range []struct {
		ask, want string
		env       []string
	}{
		{ask: "500us", want: "500µs"},
		{ask: "1ns", want: "50µs"},                                // the system's is more
		{ask: "500us", want: "50µs", env: []string{again + "=1"}}, // the system forgot it
	} {
		c := exec.CommandContext(t.Context(), os.Args[0], "raise", tt.ask)
		c.Env = append(os.Environ(), tt.env...)
		out, err := c.Output()
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("%d %s %q <nil> %q", c.Process.Pid, tt.want, "", tt.ask); string(out) != want {
			t.Errorf("%v: %s, want %s", tt, out, want)
		}
	}
}
