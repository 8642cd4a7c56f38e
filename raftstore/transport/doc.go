// Package transport is a node's port for its peers, and Raft over it.
//
// [NewPort] takes a TCP listener and an identity. Everything that nodes say to
// one another goes over that one port, in mutually verified TLS 1.3, each
// protocol under its ALPN name: [Port.Listener] gives the connections of one,
// [Port.Dial] makes them, [Port.Raft] runs Raft on one, and [GRPCServerOptions]
// and [GRPCDialOptions] let gRPC; package call speaks a third. Whoever is at the other end is known by
// certificate, never by address. A port bounds what strangers and members can
// take of it, and its Close ends every connection, stuck ones too.
//
// Entries go to a follower over a stream with a coding of its own; for everything
// else, votes, heartbeats and snapshots, it is the library's.
//
// [Guard] wraps any transport of the Raft library. It lets a heartbeat bypass
// the library's main loop only where that is safe, and it can be closed to
// take a node with a sick disk out of elections.
//
// Who belongs to the cluster is package identity's affair, who is a voter
// package group's. Faults for tests are in transport/faultnet.
package transport
