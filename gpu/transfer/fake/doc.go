// Package fake carries KV transfers in memory, in virtual time, with scripted
// faults: what a test, or the simulator, needs in place of package tcp.
//
// A [Network] does everything in the goroutine that calls Step, in an order
// that its seed and script determine, so that a failing run can be run again.
// It is as unkind as a transport may be: frames overtake, pages are read at the
// last moment before a move is reported sent, and payloads land in pieces with
// other events between them.
package fake
