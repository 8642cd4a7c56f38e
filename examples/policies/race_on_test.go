//go:build race

package policies

// raced says that the race detector runs, under which a guest of 1.8 MB takes ten times
// as long to compile. Those are tested without it.
const raced = true
