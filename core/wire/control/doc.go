// Package control holds the messages of the planner: what its Raft entries and
// snapshots contain and what workers say to it, with their conversion to and
// from core/fleet.
//
// The gRPC service over these messages is in the subpackage rpc, so that the
// replicated state machine, which uses the messages, does not link gRPC. What
// an entry does is decided by core/planner.
package control

//go:generate ./generate.sh
