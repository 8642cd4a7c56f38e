package sample

import "math"

// exp is e^x for x in [-80, 0], to about 1 unit in the last place, and 0 below.
// x = (k + f) ln 2 / 64, |f| <= 1/2: 2^(k/64) comes from a table and the
// exponent field, the rest from three terms of the series. The conversions keep
// the compiler from fusing operations on some machines only: a seed draws the
// same tokens on all.
func exp(x float32) float32 {
	if x < -80 {
		return 0
	}
	const (
		perLn2 = 64 / math.Ln2
		// ln 2 / 64 in two parts; k times the first is exact.
		hi = 0.693359375 / 64
		lo = -2.12194440e-4 / 64
	)
	k := int32(float32(x*perLn2) - 0.5) // the nearest: x is not positive
	r := float32(x - float32(float32(k)*hi))
	r -= float32(float32(k) * lo)
	p := float32(r*(1./6)) + .5
	p = float32(float32(p*r)*r) + r
	return math.Float32frombits(pow64[k&63]+uint32(k>>6)<<23) * (1 + p)
}

// pow64 is the bits of 2^(i/64) as float32.
var pow64 = [64]uint32{
	0x3f800000, 0x3f8164d2, 0x3f82cd87, 0x3f843a29, 0x3f85aac3, 0x3f871f62, 0x3f88980f, 0x3f8a14d5,
	0x3f8b95c2, 0x3f8d1adf, 0x3f8ea43a, 0x3f9031dc, 0x3f91c3d3, 0x3f935a2b, 0x3f94f4f0, 0x3f96942d,
	0x3f9837f0, 0x3f99e046, 0x3f9b8d3a, 0x3f9d3eda, 0x3f9ef532, 0x3fa0b051, 0x3fa27043, 0x3fa43516,
	0x3fa5fed7, 0x3fa7cd94, 0x3fa9a15b, 0x3fab7a3a, 0x3fad583f, 0x3faf3b79, 0x3fb123f6, 0x3fb311c4,
	0x3fb504f3, 0x3fb6fd92, 0x3fb8fbaf, 0x3fbaff5b, 0x3fbd08a4, 0x3fbf179a, 0x3fc12c4d, 0x3fc346cd,
	0x3fc5672a, 0x3fc78d75, 0x3fc9b9be, 0x3fcbec15, 0x3fce248c, 0x3fd06334, 0x3fd2a81e, 0x3fd4f35b,
	0x3fd744fd, 0x3fd99d16, 0x3fdbfbb8, 0x3fde60f5, 0x3fe0ccdf, 0x3fe33f89, 0x3fe5b907, 0x3fe8396a,
	0x3feac0c7, 0x3fed4f30, 0x3fefe4ba, 0x3ff28177, 0x3ff5257d, 0x3ff7d0df, 0x3ffa83b3, 0x3ffd3e0c,
}
