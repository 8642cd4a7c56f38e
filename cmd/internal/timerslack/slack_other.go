//go:build !linux

package timerslack

import "time"

// Raise does nothing here.
func Raise(time.Duration) error { return nil }
