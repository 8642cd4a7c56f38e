// Package abi is the contract ym/1 between the host and a policy in Wasm.
//
// A policy is a module with a [Manifest] in the custom section [Section]: its
// kind, the columns that it reads, its parameters, what it asks for. It owns all
// its buffers and says once where they are, in a header ([Layout]); the host
// writes columns and a request block there ([RouterRequest] and its like), makes
// one call, and reads the answer. Nothing is allocated for the guest and no call
// of the host is needed for a candidate.
//
// [Check] holds a decoded module against all of that and returns its manifest, or
// every reason to refuse it, as sentences. [Imports] are the functions that the
// host offers.
//
// Numbers are little-endian. Unknown is not zero: an f32 that is not known is NaN,
// a u32 all ones. Another major version is another contract; a minor version only
// appends columns, imports, and fields at the ends of blocks, so that a guest
// built for 1.0 runs on every 1.x.
//
// The package compiles and runs nothing, and knows neither how columns are filled
// nor what becomes of scores: that is the host's.
package abi
