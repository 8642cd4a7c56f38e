// Package actuate makes the fleet as the plan says: how many workers each pool is to
// have (core/scale), which the leader has committed.
//
// [Run] asks an [Actuator] again whenever the plan changes, and every now and then.
// [Advisory] only says what should be done, for a person or another system to do.
// [Process] does it on this machine: it starts workers as child processes and drains
// them (gpu/launch). The budget is kept at every moment: a process that drains still
// has its place, and a place that anybody else's worker has is none of ours.
//
// An actuator never decides how many; it does not mind who leads, and goes on with the
// plan that it knows while nobody does. That no two of them tend one pool is the
// operator's affair: one that shares a pool counts the others' workers and fills up.
package actuate
