//go:build !race

package collect

const shorter = 1
