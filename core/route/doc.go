// Package route picks the worker that serves a request, and the worker that
// computes its prompt when that is another one.
//
// A decision reads one immutable [fleet.View] in four steps: candidates (model,
// role), veto (draining, tried already, ejected), score (a [Policy] over
// [Columns]), pick (lowest cost, ties by seeded chance, the runner-up kept).
// The columns say what each candidate's cache holds of the prompt ([Caches]),
// what this gateway has on it, and what it said of itself. The path, aggregated
// or disaggregated, follows from the prompt's uncached tokens, the load of both
// sides and the predicted transfer. Nothing waits, and nothing is allocated.
//
// A cost of NaN makes a worker ineligible; it is never zero. What nobody measured
// is unknown, not idle.
//
// Route decides and explains ([Router.Explain]). Package dispatch gives requests
// their identity, reserves and sends; why the numbers are what they are is in
// DESIGN.md.
package route
