// Package zmtp speaks the part of ZeroMQ's wire protocol that KV events need:
// ZMTP 3.0 and 3.1 with the NULL mechanism, sockets [Sub] and [Dealer] for the
// one who listens, [Pub] and [Router] for the one who publishes.
//
// Each socket connects, binds, or both. A connection that is lost is made again
// with growing, jittered pauses; what arrives says which connection it came by,
// so that a reader knows when there may be a gap. Queues are bounded: a Sub that
// is not read stops reading its sockets, a Pub drops what a slow subscriber does
// not take and counts it.
//
// It offers no encryption, no REQ/REP state machine, no inproc, and knows nothing of what it
// carries: that is core/wire/kvevent.
package zmtp
