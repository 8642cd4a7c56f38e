// Package f16 converts IEEE half-precision numbers, the scales of quantised
// weights and the elements of the fast KV cache.
package f16

import "math"

// Float is the value of the half-precision number h, exactly.
func Float(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10&31), uint32(h&1023)
	switch exp {
	case 31: // infinity, NaN
		return math.Float32frombits(sign | 0xff<<23 | frac<<13)
	case 0: // zero, subnormal: frac * 2^-24
		x := float32(frac) * (1.0 / (1 << 24))
		return math.Float32frombits(sign | math.Float32bits(x))
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// Bits rounds x to the nearest half-precision number, ties to even, as the
// processors' instructions do. What is too large becomes infinity.
func Bits(x float32) uint16 {
	b := math.Float32bits(x)
	sign, b := uint16(b>>31<<15), b&0x7fffffff
	switch {
	case b > 0x7f800000: // NaN, kept quiet
		return sign | 0x7e00 | uint16(b>>13&0x3ff)
	case b >= 0x477ff000: // rounds beyond 65504
		return sign | 0x7c00
	case b < 0x38800000: // below 2^-14: a multiple of 2^-24
		// Adding 0.5 makes the sum's last bit 2^-24, so the sum rounds as wanted.
		return sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-0x3f000000)
	}
	// Rounding up to the next power of two carries into the exponent by itself.
	return sign | uint16((b-112<<23+0xfff+b>>13&1)>>13)
}
