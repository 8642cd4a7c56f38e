// Package planners runs a cluster of planners as processes of this program on
// one machine, for the bench and for the system's tests, and lets the process
// that asks for it be a member of the cluster: a [Member] writes and reads as a
// gateway does, over its peer port.
//
// Processes are killed here, not ended: what a cluster is measured by, and
// tested for, is what becomes of it then. Ends that are meant are package
// launch's and the system tests' own business.
package planners
