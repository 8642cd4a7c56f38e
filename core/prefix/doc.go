// Package prefix knows which worker holds which KV block.
//
// A block is named by the chained 64-bit [Hash] of all token ids up to its end,
// so equal hashes mean equal prefixes. [Index] maps a hash to the workers that
// hold the block; [Index.Lookup] walks a prompt's chain and reports, for each
// worker, how many leading blocks it holds: a hit ends at the first block the
// worker lacks.
//
// One writer applies stores and removes, any number of readers look up beside
// it without locks. The tables hold no pointers and are invisible to the
// garbage collector. Memory is bounded by a byte budget; over it the blocks
// stored longest ago are forgotten, which costs hits, never correctness: a hash
// may choose a worker, but the engine compares tokens before it reuses KV.
//
// The state is a function of the sequence of writes alone, so replicas that
// apply the same log have equal digests and equal snapshots. Lookups leave no
// trace in it. [State] is that sequence: it applies [Frame]s of workers' KV
// events, knows which are missing, and publishes which number of the index means
// which incarnation in a [Table]. Speculative entries, which are one gateway's
// own guess, live in an [Overlay].
package prefix
