// Package e2e tests the built binary and the whole line: what a user types,
// and what a client sees while processes and connections die.
//
// The command line is tested by scripts in testdata/script (testscript), the
// system by real child processes on a small generated model, so that no
// download is needed. Tests of one room belong to that room.
package e2e
