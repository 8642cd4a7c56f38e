// Package logline writes a process's log: one line a record, as key=value text or
// as JSON, in the very bytes that log/slog's own handlers give.
//
// [Handler] differs from those in what a line costs its caller: it is encoded
// without reflection, and written by another goroutine, so that a burst of lines
// is few system calls and a log that nobody reads holds no request up. What does
// not fit into memory meanwhile is left out, and a line says how many were.
// [Handler.Close] writes what is left; until then a crash may lose the lines of
// the last twenty milliseconds.
//
// What is logged, and at which level, is the callers' business.
package logline
