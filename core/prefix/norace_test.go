//go:build !race

package prefix

const shorter = 1
