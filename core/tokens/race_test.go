//go:build race

package tokens

// slowness is how much longer things may take: the race detector slows the
// template library down so.
const slowness = 8
