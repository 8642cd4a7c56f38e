// Package lead is what the leader does beside replicating: it keeps the
// workers' leases and proposes the end of those that ran out.
//
// Leases are memory of the leader, not replicated state: a renewal costs no log
// entry, and a new leader starts with a full table of fresh leases. So that
// neither a failover, nor a restart, nor a leader that was itself suspended
// expires workers in masses, every such gap grants all of them a grace.
//
// [Leases] is pure: it is told the time and returns commands. [Run] drives it
// against a [Planner]. [RunPrefix] keeps the prefix state in step with the fleet.
// What a command does is core/planner's affair, what a frame does core/prefix's;
// how renewals arrive is server/control's.
package lead
