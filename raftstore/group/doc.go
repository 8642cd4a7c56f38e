// Package group runs one Raft group: the library's node, its storage and
// transport behind their guards, and the watchdogs for what the library gets
// wrong.
//
// A [Group] takes entries ([Group.Apply], or [Group.Submit] to have several under
// way in order), answers linearizable reads ([Group.ReadIndex] at the leader,
// [Group.WaitApplied] wherever the state is read), changes its members, hands
// leadership over, saves and restores snapshots. Members compare their states by
// [Group.Samples]. [Inspect] and [Recover] work on a member that does not run.
//
// A group has two ends. It ends well by Close. It ends badly by a fault: a
// disk that hangs or fails, an entry of a newer release, a livelock of the
// library. A fault stops the group for good, closes its transport so that
// healthy members elect another leader, and is announced by [Group.Faulted];
// the rest of the process lives on. Only opening the group anew cures it.
//
// What entries mean is the [FSM]'s affair, which directory they live in and who
// ought to be a member is raftstore's.
package group
