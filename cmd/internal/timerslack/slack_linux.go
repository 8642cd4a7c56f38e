package timerslack

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// again says that the program was started again, and which slack it had before: once
// is enough, should a system forget the slack with that.
const again = "TIMERSLACK_BEFORE"

// before is the slack, in nanoseconds, that the program had when it was started; 0
// if it has not been raised.
var before int

// Raise starts the program again, as the same process and with the same arguments,
// if its threads have less slack. It does not return then, so it comes first. If
// the system does not allow it, everything works as well, at a higher cost.
func Raise(slack time.Duration) error {
	if had := os.Getenv(again); had != "" {
		before, _ = strconv.Atoi(had)
		return os.Unsetenv(again)
	}
	runtime.LockOSThread() // exec keeps the slack of the thread that calls it
	defer runtime.UnlockOSThread()
	has, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil || has >= int(slack) {
		return err
	}
	program, err := os.Executable() // its name is the process's, so not /proc/self/exe
	if err != nil {
		return err
	}
	if err := set(int(slack)); err != nil {
		return fmt.Errorf("set the timer slack: %w", err)
	}
	err = unix.Exec(program, os.Args, append(os.Environ(), again+"="+strconv.Itoa(has)))
	return fmt.Errorf("start the program again: %w", err)
}

func set(slack int) error { return unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0) }

// AsBefore starts a process, which has the slack that this one had before Raise.
func AsBefore(start func() error) error {
	if before == 0 {
		return start()
	}
	runtime.LockOSThread() // a process has the slack of the thread that starts it
	defer runtime.UnlockOSThread()
	if has, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err == nil && set(before) == nil {
		defer set(has) //nolint:errcheck // it could be set just now
	}
	return start()
}
