// Package policy measures what a routing decision costs when a policy in Wasm makes
// it: instance lent, columns in, fuel, call, scores out, instance back, pick. Beside
// it the same formula in two native forms: over columns, as this program has it, and
// over a slice of pointers with a function call per worker, as routers in Go usually
// have it.
//
// [Run] measures all forms in turns, so that a machine whose speed drifts treats them
// alike, and refuses to report a policy that picks another worker than the native one.
package policy
