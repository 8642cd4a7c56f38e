// Package quorum measures a cluster of three planners as three processes of
// this program on one machine: how long a commit takes, how long nobody can
// write after the leader is killed or hands over, and what KV events cost.
//
// Writes go the way of any member's: over the peer port, to a planner, which
// forwards them to the leader. [Etcd] measures another program's commits by the
// same means. What a router makes of the state is not measured here.
package quorum
