package host

import "golang.org/x/sys/cpu"

// step is how many values the vector forms take at once; the plain forms do the rest.
const step = 16

//go:noescape
func narrowAVX(to *float32, from *float64, n int)

//go:noescape
func invertAVX(to *float32, from *float64, n int)

//go:noescape
func widenAVX(to *float64, from *float32, n int) int

func narrow(to []float32, from []float64) {
	n := 0
	if cpu.X86.HasAVX && len(from) >= step {
		n = len(from) &^ (step - 1)
		narrowAVX(&to[:n][0], &from[0], n)
	}
	narrowPlain(to[n:], from[n:])
}

func invert(to []float32, from []float64) {
	n := 0
	if cpu.X86.HasAVX && len(from) >= step {
		n = len(from) &^ (step - 1)
		invertAVX(&to[:n][0], &from[0], n)
	}
	invertPlain(to[n:], from[n:])
}

func widen(to []float64, from []float32) bool {
	n, some := 0, false
	if cpu.X86.HasAVX && len(from) >= step {
		n = len(from) &^ (step - 1)
		some = widenAVX(&to[:n][0], &from[0], n) != 0
	}
	rest := widenPlain(to[n:], from[n:])
	return some || rest
}
