//go:build race

package raftstore

// slower is how much more time nodes get under the race detector, so that
// elections are not lost to it.
const slower = 3
