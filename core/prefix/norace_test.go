//go:build !race

package prefix

func fewer(usually, _ int) int { return usually }
