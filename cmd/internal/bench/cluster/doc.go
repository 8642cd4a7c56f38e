// Package cluster measures what a cluster is for: that streams and requests
// survive its planners, that the next decision is as good as the last when any
// node is killed and started again, and that several gateways place as one would.
//
// It runs three planners, gateways and workers with scripted engines as
// processes of this program on loopback (package rig) and is their client. What
// consensus itself costs is measured by package quorum.
package cluster
