// Package rollout measures what it is to change policies under load: that no request
// fails and none is decided by another version than the one bound at its log index,
// that memory stays as it is over many reloads, and how long it takes from an upload
// until every node decides by it.
//
// It runs three planners, gateways and workers with scripted engines as processes of
// this program on loopback (package rig), is their client and their operator. What one
// decision costs is measured by package policy beside it.
package rollout
