//go:build race

package model

// raceEnabled leaves out what the race detector slows tenfold.
const raceEnabled = true
