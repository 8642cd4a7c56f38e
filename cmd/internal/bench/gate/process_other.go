//go:build !linux

package gate

import (
	"errors"
	"os/exec"
	"time"
)

// ErrLinux means that the measurement needs Linux's account of a process.
var ErrLinux = errors.New("measuring a gateway needs Linux")

func startPinned(*exec.Cmd) (bool, error)    { return false, ErrLinux }
func (*process) cpu() (time.Duration, error) { return 0, ErrLinux }
func (*process) resident() (int64, error)    { return 0, ErrLinux }
