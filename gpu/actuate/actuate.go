package actuate

import (
	"context"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/scale"
)

// Actuator makes the fleet as a plan says, step by step.
type Actuator interface {
	// Step does what can be done now. It neither waits nor keeps its arguments. plan is
	// nil while there is none: then nothing is changed.
	Step(now time.Time, plan *scale.Plan, view *fleet.View)
}

// Source is where the plan and the fleet are read.
type Source interface {
	// Plan is the plan in force, nil where there is none.
	Plan() *scale.Plan
	// Changed is closed at the next change of the plan, among others.
	Changed() <-chan struct{}
	View() *fleet.View
}

// lookEvery is how often an actuator is asked though the plan stays: processes end and
// workers come by themselves.
const lookEvery = 200 * time.Millisecond

// Run has an actuator follow the plan until ctx ends. What it has started then goes on.
func Run(ctx context.Context, c clock.Clock, from Source, a Actuator) {
	timer := c.NewTimer(0)
	defer timer.Stop()
	for {
		changed := from.Changed()
		a.Step(c.Now(), from.Plan(), from.View())
		timer.Reset(lookEvery)
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-timer.C():
		}
	}
}
