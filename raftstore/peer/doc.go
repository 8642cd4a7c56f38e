// Package peer is what nodes of a cluster say to one another beside Raft: who
// they are, that they want to join, what they propose through the leader, how
// they are.
//
// [Pool] keeps one gRPC connection to each node that is spoken to, [Book] knows
// who is where. What the answers mean and what they decide is raftstore's affair.
// Who may connect at all is raftstore/transport's: the caller of every method is
// known by its certificate.
package peer

//go:generate ./generate.sh
