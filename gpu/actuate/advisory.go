package actuate

import (
	"log/slog"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/scale"
)

// Advisory says in metrics and, when the plan changes, in the log what pools should
// have and do have. Make one with NewAdvisory.
type Advisory struct {
	registry *measure.Registry
	log      *slog.Logger
	plan     *scale.Plan // that was last said
	view     *fleet.View
	shown    map[scale.Key]bool
}

// NewAdvisory is one that has said nothing. log may be nil.
func NewAdvisory(r *measure.Registry, log *slog.Logger) *Advisory {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Advisory{registry: r, log: log, shown: map[scale.Key]bool{}}
}

// Step says what is new.
func (a *Advisory) Step(_ time.Time, plan *scale.Plan, view *fleet.View) {
	if plan == nil || plan == a.plan && view == a.view {
		return
	}
	ready, draining := Count(view)
	for i := range plan.Pools {
		p := &plan.Pools[i]
		before, had := a.plan.Find(p.Key)
		if a.plan != nil && (!had || before.Desired != p.Desired) {
			a.log.Info("pool is to be resized", "pool", p.String(), "from", before.Desired, "to", p.Desired, "ready", ready[p.Key], "draining", draining[p.Key], "why", p.Reason, "policy", plan.Policy)
		}
		a.show(p.Key, float64(p.Desired), float64(ready[p.Key]), float64(draining[p.Key]))
		a.shown[p.Key] = true
	}
	for key := range a.shown {
		if _, still := plan.Find(key); !still {
			a.show(key, 0, 0, 0)
			delete(a.shown, key)
		}
	}
	a.plan, a.view = plan, view
}

func (a *Advisory) show(key scale.Key, desired, ready, draining float64) {
	role := key.Role.String()
	a.registry.Gauge(measure.ScaleDesired, key.Model, role).Set(desired)
	a.registry.Gauge(measure.ScaleActual, key.Model, role, "ready").Set(ready)
	a.registry.Gauge(measure.ScaleActual, key.Model, role, "draining").Set(draining)
}

// Count is the workers of each pool: those that take requests, and those that drain.
func Count(view *fleet.View) (ready, draining map[scale.Key]uint32) {
	ready, draining = map[scale.Key]uint32{}, map[scale.Key]uint32{}
	for i := range view.Workers {
		w := &view.Workers[i]
		if w.Draining {
			draining[scale.KeyOf(w)]++
		} else {
			ready[scale.KeyOf(w)]++
		}
	}
	return ready, draining
}
