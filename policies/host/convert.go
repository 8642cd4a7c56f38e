package host

import "math"

// Routing counts in float64 and guests in float32, so that columns are converted as
// they are copied, and scores back. This is most of what a decision costs beside the
// guest's own work: 4,096 numbers take 9 µs one by one, for each conversion waits for
// the register of the one before, and 0.4 by vectors. The functions below are the plain
// form; narrow, invert and widen are faster where the machine has AVX.

// narrowPlain rounds numbers to float32.
func narrowPlain(to []float32, from []float64) {
	to = to[:len(from)]
	for i, v := range from {
		to[i] = float32(v)
	}
}

// invertPlain is narrowPlain of 1/v.
func invertPlain(to []float32, from []float64) {
	to = to[:len(from)]
	for i, v := range from {
		to[i] = float32(1 / v)
	}
}

// widenPlain writes scores as costs, with NaN for what is infinite, and says whether
// one of them is a number.
func widenPlain(to []float64, from []float32) bool {
	some := false
	to = to[:len(from)]
	for i, s := range from {
		v := float64(s)
		// The difference of a number with itself is 0, of anything else NaN.
		if v-v == 0 {
			some = true
		} else {
			v = math.NaN()
		}
		to[i] = v
	}
	return some
}

// low and high are the halves of keys.
func low(to []uint32, from []uint64) {
	to = to[:len(from)]
	for i, v := range from {
		to[i] = uint32(v)
	}
}

func high(to []uint32, from []uint64) {
	to = to[:len(from)]
	for i, v := range from {
		to[i] = uint32(v >> 32)
	}
}
