// Package rpc is the generated gRPC service of the planner for workers. Its
// server is server/control, its client gpu/agent.
package rpc
