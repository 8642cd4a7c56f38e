//go:build !race

package policies

const raced = false
