// Package clock is where core gets the time. [Real] is the machine's clock;
// [Virtual] moves only when told, so that a simulation or a test of deadlines
// runs in microseconds.
//
// Time that enters replicated state never comes from here: it is a value
// inside a Raft entry.
package clock
