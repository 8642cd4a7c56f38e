// Package scale decides how many workers each pool should have.
//
// A pool is the workers of one model and role. A [Policy] reads a [Window], the
// last samples of all pools, and says what each should have ([Want]); a [Limiter]
// makes a [Plan] of that: between each pool's fewest and most, no faster than
// allowed, and never more in sum than the budget, counting what still runs. The
// pure policies here are the fallback of those in Wasm and their measure.
//
// Zero traffic is data: a pool that nobody asks for shrinks. What is unknown is
// NaN and changes nothing: a pool whose gauges are silent keeps its size.
//
// Who samples and when a tick is due is package lead's affair, how a plan comes
// into force core/planner's, and who starts and drains workers an actuator's. Why
// the numbers are what they are is in DESIGN.md.
package scale
