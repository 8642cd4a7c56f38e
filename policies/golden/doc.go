// Package golden holds policies to files of decisions: columns and a request in, the
// scores, verdict or replica counts that are expected out. It is the harness behind
// `yardmaster policy test`, and runs the same host as production does, with a clock,
// a seed and a state that the file sets.
//
// [Run] compares and [Record] writes down what the policy decides, for a reviewer to
// read in the difference. The format is in plugins-sdk/SPEC.md, section 9.
//
// It neither uploads a module nor judges whether one may be trusted: that is package
// vet's.
package golden
