// Package timerslack lets the threads of a process be woken late. While anything
// runs, the Go runtime's monitor thread sleeps for 20 µs at a time, and for the
// system's slack of 50 µs at most beyond: in a process that mostly waits for disks
// and peers that is a good part of all it costs. The monitor has the slack of the
// thread that started the program, so the program is started again.
package timerslack

import "time"

// Ours is what suits a planner. All its timers may be late by as much: the shortest,
// 200 µs, is of a linearizable read that has to ask the other planners again.
const Ours = time.Millisecond
