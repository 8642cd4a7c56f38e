package lead

import (
	"context"
	"log/slog"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/prefix"
)

// PrefixDuties are the parts that RunPrefix joins. All but Logger are required;
// Logger may be nil.
type PrefixDuties struct {
	State *prefix.State
	// Propose brings a frame into force.
	Propose  func(context.Context, *prefix.Frame) (prefix.Outcome, error)
	View     func() *fleet.View
	Leading  func() bool
	Clock    clock.Clock
	Registry *measure.Registry
	Logger   *slog.Logger
}

// prefixEvery is how often the prefix state is looked at. Lookups ignore a
// worker that is gone at once, because nobody asks for it; this only frees what
// it held.
const prefixEvery = 100 * time.Millisecond

// RunPrefix keeps the prefix state in step with the fleet until ctx ends:
// workers that are gone are detached, their memory freed, gauges set. On a node
// that does not lead it only sets gauges, so every node runs it.
func RunPrefix(ctx context.Context, d PrefixDuties) {
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	gauges := newPrefixGauges(d.Registry)
	var complaint complaint
	timer := d.Clock.NewTimer(prefixEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
		}
		if d.Leading() {
			if err := d.tend(ctx); complaint.fresh(err) {
				d.Logger.Warn("prefix state not kept in step with the fleet; trying again", "error", err)
			}
		}
		gauges.show(d.State.Stats())
		timer.Reset(prefixEvery)
	}
}

// tend proposes what is due now.
func (d *PrefixDuties) tend(ctx context.Context) error {
	due := d.State.Stale(d.View())
	if d.State.Sweeping() {
		due = append(due, prefix.Frame{Kind: prefix.FrameSweep})
	}
	for i := range due {
		call, cancel := context.WithTimeout(ctx, proposeTimeout)
		_, err := d.Propose(call, &due[i])
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// prefixGauges show what an index holds.
type prefixGauges struct {
	blocks, pairs, bytes, exact, degraded measure.Gauge
	forgotten                             measure.Counter
	shown                                 int64 // of forgotten
}

func newPrefixGauges(r *measure.Registry) *prefixGauges {
	return &prefixGauges{
		blocks: r.Gauge(measure.PrefixBlocks), pairs: r.Gauge(measure.PrefixPairs), bytes: r.Gauge(measure.PrefixBytes),
		exact: r.Gauge(measure.PrefixWorkers, "exact"), degraded: r.Gauge(measure.PrefixWorkers, "degraded"),
		forgotten: r.Counter(measure.PrefixForgotten),
	}
}

func (g *prefixGauges) show(s prefix.StateStats) {
	g.blocks.Set(float64(s.Blocks))
	g.pairs.Set(float64(s.Held))
	g.bytes.Set(float64(s.Bytes))
	g.degraded.Set(float64(s.Degraded))
	g.exact.Set(float64(s.Workers - s.Degraded))
	// A restored state counts from what its snapshot says.
	g.forgotten.Add(float64(max(s.Forgotten-g.shown, 0)))
	g.shown = s.Forgotten
}
