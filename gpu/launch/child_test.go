package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// The test binary is its own child: LAUNCH_CHILD says how to behave.
func TestMain(m *testing.M) {
	if how := os.Getenv("LAUNCH_CHILD"); how != "" {
		behave(how)
		return
	}
	goleak.VerifyTestMain(m)
}

func behave(how string) {
	switch how {
	case "exit2":
		os.Exit(2)
	case "crash":
		fmt.Fprint(os.Stderr, "last words")
		os.Exit(1)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		fmt.Fprintln(os.Stdout, "ready")
		time.Sleep(time.Minute)
	case "drain":
		term := make(chan os.Signal, 1)
		signal.Notify(term, syscall.SIGTERM)
		fmt.Fprintln(os.Stdout, "ready")
		<-term
		fmt.Fprintln(os.Stdout, "drained")
	case "leashed":
		<-ParentGone(os.Stdin)
	case "parent": // starts a leashed grandchild, prints its pid, is killed
		c := Start(child("grandchild", "leashed", nil), Options{})
		for c.Pid() == 0 {
			time.Sleep(time.Millisecond)
		}
		fmt.Fprintln(os.Stdout, c.Pid())
		time.Sleep(time.Minute)
	}
}

type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) wait(t *testing.T, want string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if strings.Contains(l.String(), want) {
			return
		}
	}
	t.Fatalf("no %q in %q", want, l.String())
}

func child(name, how string, out *lines) Command {
	c := Command{Name: name, Path: os.Args[0], Env: append(os.Environ(), "LAUNCH_CHILD="+how)}
	if out != nil {
		c.Output = out
	}
	return c
}

func stop(t *testing.T, c *Child, within time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return c.Stop(ctx)
}

func TestStopLetsTheChildDrain(t *testing.T) {
	var out lines
	c := Start(child("w", "drain", &out), Options{})
	out.wait(t, "w | ready\n")
	if err := stop(t, c, 20*time.Second); err != nil {
		t.Error(err)
	}
	if !strings.Contains(out.String(), "w | drained\n") || c.Pid() != 0 || c.Err() != nil {
		t.Errorf("output %q, pid %d, err %v", out.String(), c.Pid(), c.Err())
	}
	if err := stop(t, c, time.Second); err != nil {
		t.Errorf("a second Stop: %v", err)
	}
}

func TestStopForcesAStubbornChild(t *testing.T) {
	var out lines
	c := Start(child("w", "stubborn", &out), Options{})
	out.wait(t, "ready")
	if err := stop(t, c, 10*time.Millisecond); !errors.Is(err, ErrForced) {
		t.Errorf("got %v", err)
	}
}

func TestACrashedChildIsStartedAgain(t *testing.T) {
	var out lines
	c := Start(child("w", "crash", &out), Options{FirstPause: time.Millisecond, LongestPause: 2 * time.Millisecond})
	out.wait(t, "w | last words\nw | last words\nw | last words\n")
	if err := stop(t, c, 20*time.Second); err != nil || c.Restarts() < 2 {
		t.Errorf("%v, %d restarts", err, c.Restarts())
	}
}

func TestAKilledChildIsStartedAgain(t *testing.T) {
	var out lines
	c := Start(child("w", "drain", &out), Options{FirstPause: time.Millisecond})
	out.wait(t, "ready\n")
	c.Signal(syscall.SIGKILL)
	out.wait(t, "ready\nw | ready\n")
	if err := stop(t, c, 20*time.Second); err != nil {
		t.Error(err)
	}
}

func TestAFinalCodeEndsIt(t *testing.T) {
	c := Start(child("w", "exit2", nil), Options{FinalCodes: []int{2}})
	<-c.Done()
	if !errors.Is(c.Err(), ErrFinal) || c.Restarts() != 0 {
		t.Errorf("%v, %d restarts", c.Err(), c.Restarts())
	}
}

func TestAMissingExecutableIsRetried(t *testing.T) {
	c := Start(Command{Name: "w", Path: "/nonexistent"}, Options{FirstPause: time.Millisecond})
	for c.Restarts() < 2 {
		time.Sleep(time.Millisecond)
	}
	if err := stop(t, c, 20*time.Second); err != nil {
		t.Error(err)
	}
}

func TestAChildDoesNotOutliveItsParent(t *testing.T) {
	parent := exec.CommandContext(t.Context(), os.Args[0])
	parent.Env = append(os.Environ(), "LAUNCH_CHILD=parent")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	parent.Wait() //nolint:errcheck // it was killed
	for deadline := time.Now().Add(20 * time.Second); alive(pid); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the grandchild lives on")
		}
	}
}

// alive looks at the process table; a dead process that nobody has waited for
// counts as dead.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !os.IsNotExist(err)
	}
	return !strings.Contains(string(stat), ") Z ")
}

func TestPrefixer(t *testing.T) {
	var out bytes.Buffer
	p := newPrefixer(&out, "n")
	for _, part := range []string{"a", "b\nc\n\n", strings.Repeat("x", 2*longestLine), "y\nend"} {
		if n, err := p.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
	}
	p.flush()
	long := "n | " + strings.Repeat("x", longestLine-4) + "\n"
	if want := "n | ab\nn | c\nn | \n" + long + "n | end\n"; out.String() != want {
		t.Errorf("got %d bytes, want %d", out.Len(), len(want))
	}
}
