//go:build race

package prefix

// fewer is how often, or of what size, something is tried: the race detector
// slows what is done with each block 15 times.
func fewer(_, race int) int { return race }
