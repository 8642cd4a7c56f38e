// Package rig runs a whole cluster as processes of this program on loopback:
// three planners (package planners), gateways that join them, and workers that
// host scripted engines. Any of them can be killed as a power cut would, and
// started again with its files and addresses.
//
// It knows nothing of what is measured; that is package cluster beside it. It
// stops what it started and nothing else.
package rig
