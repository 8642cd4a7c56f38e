// Package raftstore keeps the cluster's state: a data directory, a Raft node
// that replicates core/planner's state machine, and the door to both.
//
// [Open] opens or creates a directory (or keeps everything in memory) and
// starts the node. [Store.Propose] changes the state, [Store.View] reads it
// from memory, [Store.Read] reads it linearizably. A fault that only a restart
// can cure closes [Store.Faulted]; reads from memory go on after it.
//
// Today a store is a cluster of one voter. The parts know no such limit:
// raftstore/group runs a member of any group, raftstore/transport guards any
// network, raftstore/wal any log.
//
// raftstore does not decide what commands mean (core/planner), when workers
// expire (core/lead) or who may propose (server).
package raftstore
