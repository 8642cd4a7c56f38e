// Package batchtest has what tests of and around the CPU engine's scheduler
// need: a [Runner] that stands in for the model, and [Text], what a request
// must produce when nothing goes wrong.
//
// The runner is no model, but it is as unforgiving as one: each position's keys
// and values depend on all positions before it, as they lie in the pages, and
// the logits depend on every byte of every page. A block that is shared, moved,
// overwritten or freed wrongly changes the text.
package batchtest
