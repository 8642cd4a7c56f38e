// Package server is the gateway's HTTP side: its listeners, its routes, and the
// way it stops.
//
// [New] joins the front doors (server/openai), health and metrics into one
// handler; [Server.Serve] accepts on a listener; [Server.Drain] stops in order:
// readiness goes off, running requests finish within a deadline, what is left
// is told and cut. Requests are computed by core/dispatch. The admin API has its
// own listener and is not served here.
package server
