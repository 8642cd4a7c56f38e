//go:build !race

package tokens

const slowness = 1
