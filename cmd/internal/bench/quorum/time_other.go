//go:build !linux

package quorum

import (
	"errors"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/planners"
)

// processorTime is known on Linux only.
func processorTime(*planners.Cluster) (time.Duration, error) {
	return 0, errors.New("bench raft measures processor time on Linux only: leave --event-seconds out")
}
