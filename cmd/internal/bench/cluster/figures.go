package cluster

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// quantile is the value below which the share q lies; 0 when there are none. It
// sorts v.
func quantile[T time.Duration | float64](v []T, q float64) T {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return v[min(int(q*float64(len(v))), len(v)-1)]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// SystemLoad is the system's load average of the last minute; -1 where there is
// none to be read.
func SystemLoad() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return -1
	}
	first, _, _ := strings.Cut(string(text), " ")
	v, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return -1
	}
	return v
}
