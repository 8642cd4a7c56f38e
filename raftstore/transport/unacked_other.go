//go:build !linux

package transport

import "syscall"

// limitUnacked has no counterpart here: deadlines and keep-alive do the work,
// later.
func limitUnacked(syscall.RawConn) error { return nil }
