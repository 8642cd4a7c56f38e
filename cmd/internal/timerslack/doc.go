// Package timerslack lets the threads of a process be woken late. While anything
// runs, the Go runtime's monitor thread sleeps for 20 µs at a time; with the
// system's usual slack of 50 µs it wakes up to 15,000 times a second, and in a
// process that waits for disks and peers most of the time that is a sixth of all
// it costs. The monitor has the slack of the thread that started the program, so
// the program is started again.
package timerslack

import "time"

// Ours is what suits a process that waits for nothing shorter than milliseconds.
const Ours = time.Millisecond
