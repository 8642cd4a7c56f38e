//go:build !linux

package bench

import "time"

// threadTime is unknown here.
func threadTime() time.Duration { return 0 }
