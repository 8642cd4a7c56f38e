package timerslack

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain is the program under test when it is called as one.
func TestMain(m *testing.M) {
	if len(os.Args) != 3 {
		os.Exit(m.Run())
	}
	switch os.Args[1] {
	case "raise": // and say what has come of it, for a child, too
		slack, err := time.ParseDuration(os.Args[2])
		if err == nil {
			err = Raise(slack)
		}
		say := func(what string) *exec.Cmd {
			c := exec.Command(os.Args[0], "say", what) //nolint:noctx // at once
			c.Stdout = os.Stdout
			return c
		}
		child, later := say("child"), say("later")
		_, _ = fmt.Fprintf(os.Stdout, "%d %v %q %v; ", os.Getpid(), err, os.Getenv(again), has())
		_ = AsBefore(child.Start)
		_ = child.Wait()
		_ = later.Run()
	case "say":
		_, _ = fmt.Fprintf(os.Stdout, "%s %v; ", os.Args[2], has())
	}
}

// has is the slack of this process.
func has() time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return -1
	}
	return time.Duration(slack)
}

// TestRaise: the process stays the one that was started, its threads have the
// slack, and processes that it starts are not told of it, nor have it unless they
// are started in another way.
func TestRaise(t *testing.T) {
	ours := has()
	for _, tt := range []struct {
		name, ask  string
		env        []string
		has, child time.Duration
	}{
		{name: "raised", ask: (ours + time.Millisecond).String(), has: ours + time.Millisecond, child: ours},
		{name: "the system has more", ask: "1ns", has: ours, child: ours},
		{
			name: "the system forgot it", ask: (ours + time.Millisecond).String(), has: ours, child: ours,
			env: []string{again + "=" + strconv.FormatInt(int64(ours), 10)},
		},
	} {
		c := exec.CommandContext(t.Context(), os.Args[0], "raise", tt.ask)
		c.Env = append(append(os.Environ(), "GORACE=atexit_sleep_ms=0"), tt.env...)
		out, err := c.Output()
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("%d <nil> \"\" %v; child %v; later %v; ", c.Process.Pid, tt.has, tt.child, tt.has)
		if string(out) != want {
			t.Errorf("%s: %s, want %s", tt.name, out, want)
		}
	}
}
