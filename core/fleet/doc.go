// Package fleet describes the workers, their roles and incarnations, as one
// immutable [View] that readers share without locks.
//
// A worker's identity is its [Epoch]: the Raft index of its registration. A
// worker that restarts on the same address has a new epoch, and nothing said
// about the old one applies to it.
//
// A [View] holds facts that Raft has committed. [Samples] holds what workers
// last said of themselves, which is only hearsay; it is bound to epochs too.
// In-flight load is in core/load; who has gone silent is judged by core/lead.
package fleet
