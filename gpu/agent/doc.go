// Package agent keeps a worker a member of the fleet: it registers the worker
// with the planner, renews its lease with the engine's latest stats, registers
// again when the planner no longer knows it, and drains and leaves.
//
// The planner may be away for as long as it likes: the agent goes on trying,
// address after address with growing, jittered pauses, and the worker goes on
// serving under the epoch it has. [Agent.Epoch] is lock-free, so that the
// engine can compare each request's epoch with it.
//
// The agent does not run the engine (gpu/launch, gpu/cpu) and does not decide
// who is alive (core/lead). Its peer is server/control.
package agent
