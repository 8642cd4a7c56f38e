// Package admit decides whether a request may begin, and lets it wait when it
// may not yet.
//
// A [Gate] bounds the requests inside and the memory of their bodies: over a
// bound the answer is an immediate "busy". A [Lobby] holds those for which there
// is no worker at the moment, in one bounded [Line] a model, first come first
// served; who leaves makes room at once, wherever it stood. A [Budget] bounds the
// retries that requests may cause.
//
// Which worker serves a request, and whether one can, is core/route's business;
// how long waiting is worthwhile, and what to say afterwards, core/dispatch's.
package admit
