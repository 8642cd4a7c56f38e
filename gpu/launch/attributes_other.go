//go:build !linux

package launch

import "syscall"

// attributes gives the child a process group of its own. It learns of its
// parent's death by the end of its standard input.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
