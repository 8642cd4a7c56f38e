// Package admit decides whether a request may begin, and lets it wait when it
// may not yet.
//
// A [Gate] bounds the requests inside and the memory of their bodies: over a
// bound the answer is an immediate "busy". A [Policy] then says whether a request
// is served and how urgent it is, by its tenant, its class and the state of the
// fleet; policies in Wasm are of the same interface. A [Spender] reserves tenants'
// tokens of the cluster's quotas, and [Tenants] keeps what each has had here.
//
// A [Lobby] holds those for which there is no worker at the moment, in one bounded
// [Line] a model, the most urgent first and fair among tenants; who leaves makes
// room at once, wherever it stood. A [Budget] bounds the retries that requests may
// cause.
//
// Which worker serves a request, and whether one can, is core/route's business;
// how long waiting is worthwhile, and what to say afterwards, core/dispatch's.
package admit
