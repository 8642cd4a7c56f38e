package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
)

// Command says what to run.
type Command struct {
	Name string   // in logs, and before each line of output
	Path string   // executable
	Args []string // without the executable
	Env  []string // as os.Environ; nil inherits
	// Output receives the child's standard output and error, a whole line a
	// Write, prefixed with Name. It must be safe for concurrent use.
	Output io.Writer
}

// Options of a Child. The zero value of each field means its default.
type Options struct {
	// FirstPause and LongestPause bound the pause before a restart, which
	// doubles each time. Defaults: 200 ms and 10 s.
	FirstPause, LongestPause time.Duration
	// Settled is how long a child must have run for the pause to begin anew.
	// Default: 30 s.
	Settled time.Duration
	// FinalCodes are exit codes after which starting again is pointless.
	FinalCodes []int
	// Around starts the process by calling start. Default: that and no more.
	Around func(start func() error) error
	Clock  clock.Clock  // default: clock.Real
	Log    *slog.Logger // default: none
}

func (o Options) withDefaults() Options {
	if o.FirstPause <= 0 {
		o.FirstPause = 200 * time.Millisecond
	}
	if o.LongestPause <= 0 {
		o.LongestPause = 10 * time.Second
	}
	if o.Settled <= 0 {
		o.Settled = 30 * time.Second
	}
	if o.Around == nil {
		o.Around = func(start func() error) error { return start() }
	}
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// ErrFinal means that the child ended with one of the FinalCodes.
var ErrFinal = errors.New("child gave up")

// ErrForced means that the child had to be killed.
var ErrForced = errors.New("child did not stop in time and was killed")

// Child is one supervised process. It is safe for concurrent use.
type Child struct {
	cmd  Command
	opts Options
	stop chan struct{} // closed by the first Stop
	done chan struct{} // closed when nothing runs any more
	once sync.Once

	mu       sync.Mutex
	process  *os.Process // nil between two runs
	restarts int
	err      error
}

// Start runs cmd and keeps it running until Stop.
func Start(cmd Command, opts Options) *Child {
	c := &Child{cmd: cmd, opts: opts.withDefaults(), stop: make(chan struct{}), done: make(chan struct{})}
	go c.supervise()
	return c
}

// Name is the command's name.
func (c *Child) Name() string { return c.cmd.Name }

// Done is closed when the child has ended for good.
func (c *Child) Done() <-chan struct{} { return c.done }

// Err says why the child ended for good; nil while it runs or was stopped.
func (c *Child) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Restarts counts how often the child was started again.
func (c *Child) Restarts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.restarts
}

// Pid is the running process's id, or 0 between two runs.
func (c *Child) Pid() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return 0
	}
	return c.process.Pid
}

// Signal sends sig to the running process, if there is one.
func (c *Child) Signal(sig os.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process != nil {
		c.process.Signal(sig) //nolint:errcheck // a process that has just ended needs no signal
	}
}

// Stop asks the child to end, waits until ctx ends, then kills it. It returns
// when nothing runs any more: ErrForced when it came to that.
func (c *Child) Stop(ctx context.Context) error {
	c.once.Do(func() { close(c.stop) })
	c.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
	}
	c.Signal(syscall.SIGKILL)
	<-c.done
	return fmt.Errorf("launch: %s: %w", c.cmd.Name, ErrForced)
}

func (c *Child) stopping() bool {
	select {
	case <-c.stop:
		return true
	default:
		return false
	}
}

func (c *Child) supervise() {
	defer close(c.done)
	// The kernel's death signal comes when the thread that started the child
	// ends, so that thread must be this one for the child's whole life.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pause := c.opts.FirstPause
	for !c.stopping() {
		began := c.opts.Clock.Now()
		code, err := c.run()
		if c.stopping() {
			return
		}
		if slices.Contains(c.opts.FinalCodes, code) {
			c.fail(fmt.Errorf("launch: %s: %w with exit code %d", c.cmd.Name, ErrFinal, code))
			return
		}
		if c.opts.Clock.Now().Sub(began) >= c.opts.Settled {
			pause = c.opts.FirstPause
		}
		c.opts.Log.Warn("child ended, starting it again", "child", c.cmd.Name, "error", err, "pause", pause)
		if !c.sleep(pause) {
			return
		}
		pause = min(2*pause, c.opts.LongestPause)
		c.mu.Lock()
		c.restarts++
		c.mu.Unlock()
	}
}

func (c *Child) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

func (c *Child) sleep(d time.Duration) (slept bool) {
	timer := c.opts.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-c.stop:
		return false
	}
}

// outputGrace is how long a dead child's output may stay open, held by a
// grandchild.
const outputGrace = 2 * time.Second

// run starts the process once and waits for its end. The code is -1 when it
// did not start or a signal ended it.
func (c *Child) run() (code int, err error) {
	cmd := exec.Command(c.cmd.Path, c.cmd.Args...) //nolint:noctx // Stop ends it, gently first
	cmd.Env = c.cmd.Env
	cmd.SysProcAttr = attributes()
	cmd.WaitDelay = outputGrace
	if c.cmd.Output != nil {
		out := newPrefixer(c.cmd.Output, c.cmd.Name)
		defer out.flush()
		cmd.Stdout, cmd.Stderr = out, out
	}
	// The child sees the end of its input when this process is gone.
	leash, err := cmd.StdinPipe()
	if err != nil {
		return -1, fmt.Errorf("launch: %w", err)
	}
	defer leash.Close() //nolint:errcheck // a pipe to a dead child
	if err := c.start(cmd); err != nil {
		return -1, err
	}
	err = cmd.Wait()
	c.mu.Lock()
	c.process = nil
	c.mu.Unlock()
	return cmd.ProcessState.ExitCode(), err
}

// start starts the process under the lock, so that Stop either finds it or has
// been seen.
func (c *Child) start(cmd *exec.Cmd) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping() {
		return context.Canceled
	}
	if err := c.opts.Around(cmd.Start); err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	c.process = cmd.Process
	return nil
}

// ParentGone is closed when stdin ends: the process that started this one is
// gone. Call it in a child only; it reads, and drops, all of stdin.
func ParentGone(stdin io.Reader) <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		io.Copy(io.Discard, stdin) //nolint:errcheck // an error is an end too
	}()
	return gone
}
