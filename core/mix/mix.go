package mix

// Gamma is the golden ratio's fraction in 64 bits, odd: SplitMix64's step.
const Gamma = 0x9e3779b97f4a7c15

// Bits spreads x over the word: SplitMix64's finaliser. It is invertible, and 0
// stays 0.
func Bits(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Next is what SplitMix64 says in state x: Bits one step further, so that 0 does
// not stay 0.
func Next(x uint64) uint64 { return Bits(x + Gamma) }
