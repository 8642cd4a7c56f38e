// Package raftstore keeps the cluster's state: a node with its part in two Raft
// groups, core (core/planner's state machine) and prefix (which worker holds
// which KV block), and the door to both.
//
// [Open] runs a node in one of three shapes. Alone it is the one voter of a
// cluster of its own. A planner with a port founds a cluster with others, or
// joins one, and votes. A gateway receives everything, votes on nothing and
// keeps nothing on disk. [Store.Propose] and [Store.ProposeFrame] change the
// state from any node: the leader applies, others hand on, and the death of a
// leader costs time and nothing else. [Store.PutBlob] brings a policy's bytes to a
// quorum beside the log, and every node fetches those that the state names. [Store.View], [Store.State] and
// [Store.Prefix] read from memory; [Store.Read] waits until memory is as fresh
// as asked. A fault that only a restart can cure closes [Store.Faulted]; reads
// from memory go on after it.
//
// One node of the cluster leads the core group. It asks the others how they are,
// judges them (raftstore/member), moves their addresses, raises the feature
// level, keeps their records and removes those that are gone. The leader of the
// prefix group gives that group the members of the core group.
//
// raftstore does not decide what commands mean (core/planner), when workers
// expire (core/lead) or who may propose (server). raftstore/group runs a member
// of one group, raftstore/transport carries bytes, raftstore/identity says who
// is who, raftstore/peer is what nodes say to one another beside Raft.
package raftstore
