// Package collect turns an engine's KV events into frames for the prefix index
// and carries them to the planner.
//
// An engine names blocks by hashes of its own; the index names them by
// core/prefix.Hash. So a [Translator] follows what the engine stores, from the
// token ids of each block and its parent, and writes what the engine holds, in
// the index's names, into a [Mirror]. A [Feed] cuts the changes of the mirror
// into frames and sends them; when the planner has missed some, or is a new one,
// it compares checksums of 256 buckets and sends those that differ.
//
// Events come from a [Source]: the CPU engine's cache ([CPU]) or the sockets of
// an engine that publishes them ([ZMTP]). No source ever waits for the planner:
// the mirror absorbs what cannot be sent, and only net changes are sent later.
//
// What is believed of an engine may be less than it holds, never knowingly more:
// when events were lost beyond repair, or another process may have taken over the
// engine's address, the belief is cleared. Where frames end up is core/prefix's
// business, the stream to the planner is opened by gpu/agent.
package collect
