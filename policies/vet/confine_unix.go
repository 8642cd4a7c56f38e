//go:build linux || darwin

package vet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// mostFile bounds a file that the child writes: the code of a module of 4 MiB is a
// few times as large.
const mostFile = 128 << 20

// confine limits this process for a job: what it takes beyond is refused by the
// system, or ends it. It also makes it yield to whatever else the machine does.
func confine(j job) error {
	limits := []struct {
		what  int
		value uint64
	}{
		{unix.RLIMIT_CORE, 0},
		{unix.RLIMIT_FSIZE, mostFile},
		// Wall time ends it first, unless it computes on several cores.
		{unix.RLIMIT_CPU, mostCPU(j)},
	}
	if size, ok := addressSpace(); ok {
		limits = append(limits, struct {
			what  int
			value uint64
		}{unix.RLIMIT_AS, size + uint64(j.Memory)})
	}
	for _, l := range limits {
		if err := lower(l.what, l.value); err != nil {
			return fmt.Errorf("vet: limit %d: %w", l.what, err)
		}
	}
	// Only the system's administrator may raise it: one that is lower already stays so.
	if err := unix.Setpriority(everyThread(), 0, 5); err != nil && !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("vet: priority: %w", err)
	}
	// Should the parent die and nobody kill it.
	time.AfterFunc(j.Timeout+time.Second, func() { os.Exit(3) })
	return nil
}

// everyThread is whose priority is to be set. On Linux that of a process is that of the
// calling thread alone, and the runtime has started others; that of a process group is
// that of all its threads. The child leads a group of its own.
func everyThread() int {
	if unix.Getpgrp() == os.Getpid() {
		return unix.PRIO_PGRP
	}
	return unix.PRIO_PROCESS
}

// lower sets a limit, hard and soft, unless it is lower already.
func lower(what int, value uint64) error {
	var l unix.Rlimit
	if err := unix.Getrlimit(what, &l); err != nil {
		return err
	}
	l.Max = min(l.Max, value)
	l.Cur = min(l.Cur, l.Max)
	return unix.Setrlimit(what, &l)
}

// alone gives a command a process group of its own, which is killed as a whole.
func alone(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return unix.Kill(-c.Process.Pid, unix.SIGKILL) }
}

// mostCPU is the processor time that a child may take, in seconds.
func mostCPU(j job) uint64 { return 4 * (uint64(j.Timeout/time.Second) + 1) }

// overdrawn says whether a limit of confine's ended the command: any other signal comes
// from outside, and says nothing about the module.
func overdrawn(e *exec.ExitError, j job) bool {
	s, ok := e.Sys().(syscall.WaitStatus)
	if !ok || !s.Signaled() {
		return false
	}
	if s.Signal() == unix.SIGKILL { // at the end of all processor time
		return e.UserTime()+e.SystemTime() >= time.Duration(mostCPU(j))*time.Second-time.Second
	}
	return s.Signal() == unix.SIGXCPU || s.Signal() == unix.SIGXFSZ
}

// signalled says whether a signal ended the command.
func signalled(e *exec.ExitError) bool {
	s, ok := e.Sys().(syscall.WaitStatus)
	return ok && s.Signaled()
}
