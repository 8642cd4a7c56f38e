// Package hub is the wire of the load hub: its messages and its gRPC service.
// Both ends are in server/hub; what the numbers mean is in core/load and
// core/fleet.
package hub

//go:generate ./generate.sh
