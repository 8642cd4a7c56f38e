//go:build !linux

package tcp

import (
	"net"
	"time"
)

// userTimeout does nothing here: write deadlines and keep-alive must do.
func userTimeout(*net.TCPConn, time.Duration) error { return nil }
