//go:build race

package model

// raceEnabled shortens what the race detector slows tenfold.
const raceEnabled = true
