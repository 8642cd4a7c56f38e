// Package hub lets gateways know of each other's requests in flight. Each sends
// what it has to the leader, each 5 ms when that changed, and gets back what the
// others have, with what workers say of themselves.
//
// Twice a second a gateway also tells what it has counted of its traffic, which the
// leader's duties size pools by (core/traffic); that goes one way.
//
// A [Server] is the leader's side and runs on every planner. A [Link] is the
// gateway's: it follows whoever leads, and where its own node does it merges
// without the network. What is known of others lasts for a second after the
// leader's last word; then the gateway goes on with its own numbers alone. The
// sums are core/load's, and so is what they mean.
//
// The hub neither listens nor dials, and encrypts nothing: connections come to it
// secured, with the name of their other end. It decides no placement; core/route
// does. Nothing that it carries was agreed on by Raft.
package hub
