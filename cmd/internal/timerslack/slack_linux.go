package timerslack

import (
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// again says that the program was started again: once is enough, should a system
// forget the slack with that.
const again = "TIMERSLACK_RAISED"

// Raise starts the program again, as the same process and with the same arguments,
// if its threads have less slack. It does not return then, so it comes first. If
// the system does not allow it, everything works as well, at a higher cost.
func Raise(slack time.Duration) error {
	if os.Getenv(again) != "" {
		return os.Unsetenv(again)
	}
	runtime.LockOSThread() // exec keeps the slack of the thread that calls it
	defer runtime.UnlockOSThread()
	if has, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err != nil || has >= int(slack) {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0); err != nil {
		return fmt.Errorf("set the timer slack: %w", err)
	}
	program, err := os.Executable() // its name is the process's, so not /proc/self/exe
	if err != nil {
		return err
	}
	if err := unix.Exec(program, os.Args, append(os.Environ(), again+"=1")); err != nil {
		return fmt.Errorf("start the program again: %w", err)
	}
	return nil
}
