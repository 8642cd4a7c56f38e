package wal

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// syncData makes what was written to f durable, and what is needed to read it.
func syncData(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var fault error
	err = raw.Control(func(fd uintptr) {
		for {
			fault = unix.Fdatasync(int(fd))
			if !errors.Is(fault, unix.EINTR) {
				return
			}
		}
	})
	if err != nil {
		return err
	}
	if fault != nil {
		return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: fault}
	}
	return nil
}
