package launch

import "syscall"

// attributes gives the child a process group of its own and has the kernel
// kill it when its parent dies.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
