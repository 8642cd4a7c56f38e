// Package gate measures what a gateway costs: processor time and memory of a
// gateway process between an engine and clients that are both in this process.
//
// The engine answers at once and generates at the pace a measurement sets, so
// that all else is the gateway. On Linux the gateway is pinned to one core and
// everything here to the others, where there are several. Processor time is the
// kernel's account of the gateway's process, system calls included. Elsewhere
// than on Linux nothing is measured.
package gate
