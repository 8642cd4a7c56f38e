package quorum

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/planners"
)

// tick is the kernel's unit of processor time in /proc, the same on all machines.
const tick = 10 * time.Millisecond

// processorTime is what the planners that run have taken, together.
func processorTime(c *planners.Cluster) (sum time.Duration, err error) {
	for _, n := range c.Nodes {
		if !n.Running() {
			continue
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.PID()))
		if err != nil {
			return 0, err
		}
		text := string(b)
		fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:]) // the name may hold anything
		if len(fields) < 13 {
			return 0, fmt.Errorf("quorum: %s has no processor time", n.ID)
		}
		user, err := strconv.ParseInt(fields[11], 10, 64)
		if err != nil {
			return 0, err
		}
		system, err := strconv.ParseInt(fields[12], 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(user+system) * tick
	}
	return sum, nil
}
