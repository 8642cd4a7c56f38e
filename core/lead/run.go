package lead

import (
	"context"
	"log/slog"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/planner"
)

// Planner is the replicated state as the leader's duties need it.
type Planner interface {
	// Propose brings a command into force. Should this node have lost leadership
	// a moment ago, handing it on to the new leader does no harm: see DESIGN.md.
	Propose(ctx context.Context, cmd planner.Command) (planner.Result, error)
	View() *fleet.View
	Leading() bool
}

// Duties are the parts that Run joins. All but Logger are required; Logger may
// be nil.
type Duties struct {
	Planner  Planner
	Leases   *Leases
	Clock    clock.Clock
	Registry *measure.Registry
	Logger   *slog.Logger
}

const (
	// stepEvery is how often leases are looked at: the delay it adds to an
	// expiry is small against the TTL.
	stepEvery      = 250 * time.Millisecond
	proposeTimeout = 2 * time.Second
)

// Run carries out the leader's duties until ctx ends. On a node that does not
// lead it only watches, so every planner runs it.
func Run(ctx context.Context, d Duties) {
	log := d.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	every := min(stepEvery, d.Leases.cfg.TTL/4)
	expiries := d.Registry.Counter(measure.LeaseExpiries)
	gauges := newFleetGauges(d.Registry)
	holding := false
	var complaint complaint
	timer := d.Clock.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
		}
		view := d.Planner.View()
		gauges.show(view)
		expired := d.Leases.Step(d.Clock.Now(), view, d.Planner.Leading())
		if now := d.Leases.Holding(); now != holding {
			holding = now
			logHolding(log, holding)
		}
		for _, cmd := range expired {
			if !d.Planner.Leading() {
				break // the new leader has leases of its own
			}
			changed, err := expire(ctx, d.Planner, cmd)
			fresh := complaint.fresh(err)
			if err != nil {
				if fresh {
					log.Warn("lease expiry not committed; trying again", named(cmd), slog.Any("error", err))
				}
				break // not the leader any more, or no commit now: the next step tries again
			}
			if changed {
				log.Warn("worker expired: it stopped renewing its lease", named(cmd))
				expiries.Inc()
			}
		}
		timer.Reset(every)
	}
}

func logHolding(log *slog.Logger, holding bool) {
	if holding {
		log.Warn("most workers went silent at once, so this planner's network is suspected; expiries are held back")
		return
	}
	log.Info("most workers are heard again; expiries are no longer held back")
}

// complaint is the failure last logged: what is tried several times a second and
// fails for one reason is worth one line.
type complaint string

// fresh reports whether err is another failure than the last, if it is one.
func (c *complaint) fresh(err error) bool {
	if err == nil {
		*c = ""
		return false
	}
	was := *c
	*c = complaint(err.Error())
	return *c != was
}

// named is the incarnation that a command ends, for the log.
func named(cmd planner.Command) slog.Attr {
	c, _ := cmd.(planner.ExpireWorker) // the only command that leases give
	return slog.Group("", slog.String("worker", string(c.ID)), slog.Uint64("epoch", uint64(c.Epoch)))
}

func expire(ctx context.Context, p Planner, cmd planner.Command) (changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	res, err := p.Propose(ctx, cmd)
	return res.Changed, err
}

// fleetGauges shows the fleet by model, role and state.
type fleetGauges struct {
	registry *measure.Registry
	shown    *fleet.View
	counts   map[[3]string]float64
}

func newFleetGauges(r *measure.Registry) *fleetGauges {
	return &fleetGauges{registry: r, counts: map[[3]string]float64{}}
}

func (g *fleetGauges) show(v *fleet.View) {
	if v == g.shown {
		return
	}
	g.shown = v
	counts := map[[3]string]float64{}
	for i := range v.Workers {
		w := &v.Workers[i]
		state := "ready"
		if w.Draining {
			state = "draining"
		}
		for _, m := range w.Models {
			counts[[3]string{m, w.Role.String(), state}]++
		}
	}
	for key := range g.counts {
		if _, still := counts[key]; !still {
			counts[key] = 0
		}
	}
	for key, n := range counts {
		g.registry.Gauge(measure.Workers, key[0], key[1], key[2]).Set(n)
		if n == 0 {
			delete(counts, key)
		}
	}
	g.counts = counts
}
