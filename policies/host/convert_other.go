//go:build !amd64

package host

func narrow(to []float32, from []float64) { narrowPlain(to, from) }
func invert(to []float32, from []float64) { invertPlain(to, from) }

func widen(to []float64, from []float32) bool { return widenPlain(to, from) }
