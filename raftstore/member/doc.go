// Package member decides about the members of a cluster: who founds it, who is
// healthy, who is to be removed, which feature level all of them understand, and
// how one group's configuration follows another's.
//
// It decides and does nothing: all of it are functions of what they are given,
// the time included. raftstore asks the nodes, carries out the decisions and
// remembers.
package member
