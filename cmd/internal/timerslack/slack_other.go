//go:build !linux

package timerslack

import "time"

// Raise does nothing here.
func Raise(time.Duration) error { return nil }

// AsBefore only starts.
func AsBefore(start func() error) error { return start() }
