// Package control is the planner's gRPC service for workers: register, renew,
// drain, leave, and the feed of KV events.
//
// It turns calls into core/planner commands and renewals into core/lead leases.
// It decides nothing itself: what a registration gets is the state machine's
// word, who has expired is core/lead's. Frames of KV events go to the prefix
// state, core/prefix, whose word again decides. The clients are gpu/agent and
// gpu/collect.
//
// Workers may call any planner: what only the leader can answer, its leases above
// all, is handed on to it over a connection between planners, once and no further.
// Feeds are taken where they come in, since frames can be proposed from any node.
//
// A [Server] listens on loopback in plain text or, with a TLS configuration,
// anywhere. Sizes, connections, streams and the time of each call are bounded.
package control
