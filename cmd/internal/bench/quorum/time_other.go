//go:build !linux

package quorum

import (
	"errors"
	"time"
)

// processorTime is known on Linux only.
func (p *planners) processorTime() (time.Duration, error) {
	return 0, errors.New("bench raft measures processor time on Linux only: leave --event-seconds out")
}
