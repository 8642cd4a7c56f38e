//go:build race

package prefix

// shorter is by how much long tests are cut: the race detector slows them so.
const shorter = 15
