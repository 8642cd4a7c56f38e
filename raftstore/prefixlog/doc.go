// Package prefixlog is the log of the Raft group prefix: what its entries are,
// and how frames of workers' KV events get into it.
//
// [FSM] applies the log to a prefix.State. An entry is a version, a type and
// frames, see [Check]; each frame has its own outcome. [Batcher] gathers the
// frames of many workers into few entries, because an entry costs a sync of the
// disk and a round of messages, whatever is in it.
//
// What a frame means is core/prefix's affair. Who leads, and how an entry gets
// there, is that of whoever hands the Batcher its [Submit].
package prefixlog
