//go:build race

package collect

// shorter is by how much long tests are cut: the race detector slows them so.
const shorter = 15
