// Package scale decides how many workers each pool should have.
//
// A [Window] holds the samples of all pools. Once a tick a [Policy] says what each
// pool wants, and a [Limiter] makes the next [Plan] of that: within each pool's
// bounds and the budget of all, slowly, and never beyond the budget while the fleet
// changes. The leader ticks and commits the plan (core/lead, core/planner); every
// node can read it.
//
// The package starts and stops nothing: actuators (gpu/launch) make the fleet as
// the plan says, and drain what goes.
package scale
