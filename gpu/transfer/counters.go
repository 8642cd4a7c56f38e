package transfer

import (
	"time"

	"github.com/yardmaster/yardmaster/core/measure"
)

// counters are a node's metrics.
type counters struct {
	registry       *measure.Registry
	transport      string
	sent, received measure.Counter
	exposed        measure.Histogram
	quarantined    measure.Gauge
}

func newCounters(r *measure.Registry, transport string) counters {
	return counters{
		registry: r, transport: transport,
		sent:        r.Counter(measure.TransferBytes, transport, "sent"),
		received:    r.Counter(measure.TransferBytes, transport, "received"),
		exposed:     r.Histogram(measure.TransferExposed, transport),
		quarantined: r.Gauge(measure.TransferQuarantined),
	}
}

// rejected counts a frame that was refused.
func (c *counters) rejected(why Reason) {
	c.registry.Counter(measure.TransferRejects, string(why)).Inc()
}

// ended counts an import that is over.
func (c *counters) ended(why Reason, took time.Duration) {
	outcome := string(why)
	if outcome == "" {
		outcome = "committed"
	}
	c.registry.Counter(measure.Transfers, c.transport, outcome).Inc()
	c.registry.Histogram(measure.TransferSeconds, c.transport, outcome).Observe(took.Seconds())
}
