// Package planner is the replicated state machine of the Raft group core: who
// the workers are, under which epoch; registers, tenants' quotas and what the
// nodes say of themselves; policies, what is bound and the scaling plan; the
// cluster's name and feature level.
//
// A [Machine] changes only by [Machine.Apply], one committed entry at a time,
// and is a pure function of the log: no clock, no randomness, no map order, no
// I/O, no goroutines. The same log gives the same bytes on every node, which
// [Machine.Digest] lets nodes compare. Time, where a decision needs it, is
// judged by the leader (core/lead) and arrives as a command.
//
// Apply decides by rules that belong to the entry's version. It never runs
// fleet.Worker.Validate, whose rules may change between releases and would
// then part replicas of different releases; proposers validate, in [Encode].
//
// What an older binary could not read is proposed only once the committed
// feature level allows it: [Machine.Encode] and [Machine.Check] see to that.
//
// Readers take the fleet from [Machine.View], an immutable value behind an
// atomic pointer, and so with the rest; [Machine.Changed] tells of policies and the
// plan. Renewals of leases are not commands and do not come here; the rules of
// quotas are in core/quota, those of policies in core/rollout.
// raftstore carries entries here and snapshots to disk.
package planner
