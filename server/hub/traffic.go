package hub

import (
	"time"

	"github.com/yardmaster/yardmaster/core/traffic"
)

// reports says when the gateway is to tell what it has counted, and what.
type reports struct {
	reporter *traffic.Reporter
	last     time.Time
}

// newReports is for one listener; it tells nothing where read is nil.
func newReports(read func() []traffic.Totals) *reports {
	if read == nil {
		return &reports{}
	}
	return &reports{reporter: traffic.NewReporter(read)}
}

// due is what is to be told now; false when it is not time yet.
func (r *reports) due(now time.Time) ([]traffic.Totals, bool) {
	if r.reporter == nil || now.Sub(r.last) < traffic.Every {
		return nil, false
	}
	r.last = now
	return r.reporter.News(), true
}
