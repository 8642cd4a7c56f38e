package gate

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// startPinned starts cmd on the first core that this process may use and keeps
// this process off it. With one core only it just starts it.
func startPinned(cmd *exec.Cmd) (bool, error) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil || all.Count() < 2 {
		return false, cmd.Start()
	}
	var one unix.CPUSet
	rest := all
	for cpu := range 1024 {
		if all.IsSet(cpu) {
			one.Set(cpu)
			rest.Clear(cpu)
			break
		}
	}
	// A child begins with the affinity of the thread that made it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return false, cmd.Start()
	}
	err := cmd.Start()
	threads, readErr := os.ReadDir("/proc/self/task")
	if readErr != nil {
		return false, err
	}
	for _, t := range threads { // those to come inherit it
		if id, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.SchedSetaffinity(id, &rest) // a thread may have ended
		}
	}
	return true, err
}

// tick is the unit of the kernel's account, USER_HZ.
const tick = time.Second / 100

// cpu is the processor time that the gateway has taken.
func (p *process) cpu() (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	// The second field, in parentheses, may hold anything.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	var total time.Duration
	for _, i := range []int{11, 12} { // utime, stime
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, err
		}
		total += time.Duration(n) * tick
	}
	return total, nil
}

// resident is the gateway's resident memory in bytes.
func (p *process) resident() (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}
