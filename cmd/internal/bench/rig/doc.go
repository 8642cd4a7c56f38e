// Package rig runs a cluster as processes of this program on loopback: three
// planners that found it together, gateways that join it, and workers that host
// scripted engines. Any of them can be killed as a power cut would, and started
// again with its files and addresses.
//
// It knows nothing of what is measured; packages cluster and quorum beside it
// measure. It stops what it started and nothing else.
package rig
