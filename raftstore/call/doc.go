// Package call asks a peer something that must be answered quickly: a proposal of
// another node's, or how far a reader has to wait.
//
// [Caller] makes calls over a node's port, many at a time over one connection to
// each peer; [Server] takes them in. A call is a kind, a body, the name of the
// caller's cluster and the time that is left; an answer is an [Outcome] and a body.
// What is in the bodies is the users' affair. Everything is bounded: frames, calls
// under way, what waits to be written, and how long a peer may leave a call
// unanswered before its connection is given up.
//
// An error says whether the peer may have been asked: [ErrLost] only when it may.
// Nothing is sent twice. Peers that do not know the protocol are told by
// [ErrNotServed]; gRPC, package peer, is there for them and for everything that is
// rare.
package call
