package f16

import (
	"math"
	"testing"
)

func TestFloat(t *testing.T) {
	for h := range 1 << 16 {
		x := Float(uint16(h))
		exp, frac := h>>10&31, float64(h&1023)
		want := math.Ldexp(1+frac/1024, exp-15)
		switch exp {
		case 0:
			want = math.Ldexp(frac, -24)
		case 31:
			want = math.Inf(1)
			if frac != 0 {
				want = math.NaN()
			}
		}
		if h>>15 == 1 {
			want = -want
		}
		if float64(x) != want && !(math.IsNaN(want) && math.IsNaN(float64(x))) {
			t.Fatalf("Float(%#04x) = %v, want %v", h, x, want)
		}
		if back := Bits(x); back != uint16(h) && !math.IsNaN(want) {
			t.Fatalf("Bits(%v) = %#04x, want %#04x", x, back, h)
		}
	}
}

// TestBits checks that what lies between two neighbours goes to the nearer,
// and what lies half-way to the even one.
func TestBits(t *testing.T) {
	for h := range 0x7c00 {
		low, high := float64(Float(uint16(h))), float64(Float(uint16(h+1)))
		if h == 0x7bff {
			high = 65536
		}
		middle := float32((low + high) / 2) // exact: 12 significant bits
		even := uint16(h + h&1)
		below, above := math.Nextafter32(middle, 0), math.Nextafter32(middle, 1e9)
		for _, sign := range []uint16{0, 0x8000} {
			s := float32(1)
			if sign != 0 {
				s = -1
			}
			if a, b, c := Bits(s*below), Bits(s*middle), Bits(s*above); a != sign|uint16(h) || b != sign|even || c != sign|uint16(h+1) {
				t.Fatalf("around %v: %#04x %#04x %#04x, want %#04x %#04x %#04x", middle, a, b, c, h, even, h+1)
			}
		}
	}
	if got := Bits(float32(math.NaN())); got&0x7c00 != 0x7c00 || got&0x3ff == 0 {
		t.Errorf("NaN becomes %#04x", got)
	}
}
