package kernel

import (
	"encoding/binary"
	"math"

	"github.com/yardmaster/yardmaster/gpu/cpu/f16"
)

// The loops in pure Go. They are what the assembly is compared with, and what
// runs on machines without it. Conversions to float32 around products keep the
// compiler from fusing them into the addition on machines where it would, so
// that results are equal on all of them.

func genericKernels() *Kernels {
	return &Kernels{
		q4:        []tile[mulQ4]{{1, mulQ4Generic}},
		q8:        []tile[mulQ8]{{1, mulQ8Generic}},
		f32:       []tile[mulF32]{{1, mulF32Generic}},
		quantize:  quantizeGeneric,
		sumSquare: sumSquareGeneric,
		scale:     scaleGeneric,
		add:       addGeneric,
		siluMul:   siluMulGeneric,
		expSum:    expSumGeneric,
		widen:     widenGeneric,
		narrow:    narrowGeneric,
		transpose: transposeGeneric,
	}
}

// Two channels are multiplied at once: the weights of both stand in one 64-bit
// word, 32 bits apart, and its products with signed activations are added up. A
// low half below zero borrows from the high one; unpair undoes that. A sum of
// 32 products is below 2^21, so the halves cannot meet.

// unpacked is a block of a panel: for each input, eight pairs of channels.
type unpacked [BlockSize][PanelWidth / 2]int64

func unpair(sum int64) (low, high int32) {
	low = int32(sum)
	return low, int32((sum - int64(low)) >> 32)
}

// unpack takes the bits of mask, after a shift, from each byte of group, which
// holds four inputs of 16 channels, to inputs from to from+3.
func (u *unpacked) unpack(group []byte, shift, from int, mask uint64) {
	mask |= mask << 32
	for p := range PanelWidth / 2 {
		pair := binary.LittleEndian.Uint64(group[8*p:]) >> shift
		u[from][p] = int64(pair & mask)
		u[from+1][p] = int64(pair >> 8 & mask)
		u[from+2][p] = int64(pair >> 16 & mask)
		u[from+3][p] = int64(pair >> 24 & mask)
	}
}

// dot multiplies a block's 16 channels with 32 activations.
func (u *unpacked) dot(x *[BlockSize]int8) (dots [PanelWidth]int32) {
	var s0, s1, s2, s3, s4, s5, s6, s7 int64 // in registers
	for i, v := range x {
		a, w := int64(v), &u[i]
		s0 += w[0] * a
		s1 += w[1] * a
		s2 += w[2] * a
		s3 += w[3] * a
		s4 += w[4] * a
		s5 += w[5] * a
		s6 += w[6] * a
		s7 += w[7] * a
	}
	for p, s := range [...]int64{s0, s1, s2, s3, s4, s5, s6, s7} {
		dots[2*p], dots[2*p+1] = unpair(s)
	}
	return dots
}

func mulQ4Generic(dst *float32, ldd int, w *byte, blocks int, q *int8, ldq int, s, m *float32, lds, rows int) {
	panel := slice(w, blocks*q4Block)
	var u unpacked
	var d, low [PanelWidth]float32
	for b := range blocks {
		block := panel[b*q4Block:][:q4Block]
		for g := range 4 {
			group := block[4*PanelWidth+g*4*PanelWidth:][:4*PanelWidth]
			u.unpack(group, 0, 4*g, 15)
			u.unpack(group, 4, 4*g+BlockSize/2, 15)
		}
		for c, h := range halves(block)[:PanelWidth] {
			d[c], low[c] = f16.Float(h), f16.Float(halves(block)[PanelWidth+c])
		}
		sb, mb := slice(s, b*lds+rows)[b*lds:], slice(m, b*lds+rows)[b*lds:]
		for r := range rows {
			out := outRow(dst, ldd, r, b)
			dots := u.dot((*[BlockSize]int8)(slice(q, r*ldq+(b+1)*BlockSize)[r*ldq+b*BlockSize:]))
			for c, dot := range dots {
				out[c] += float32(float32(dot) * float32(d[c]*sb[r]))
				out[c] += float32(low[c] * mb[r])
			}
		}
	}
}

func mulQ8Generic(dst *float32, ldd int, w *byte, d *uint16, blocks int, q *int8, ldq int, s *float32, c *int32, lds, rows int) {
	panel, scales := slice(w, blocks*q8Block), slice(d, blocks*PanelWidth)
	var u unpacked
	var db [PanelWidth]float32
	for b := range blocks {
		for g := range 8 {
			u.unpack(panel[b*q8Block+g*4*PanelWidth:][:4*PanelWidth], 0, 4*g, 255)
		}
		for i, h := range scales[b*PanelWidth:][:PanelWidth] {
			db[i] = f16.Float(h)
		}
		sb, cb := slice(s, b*lds+rows)[b*lds:], slice(c, b*lds+rows)[b*lds:]
		for r := range rows {
			out := outRow(dst, ldd, r, b)
			dots := u.dot((*[BlockSize]int8)(slice(q, r*ldq+(b+1)*BlockSize)[r*ldq+b*BlockSize:]))
			for i, dot := range dots {
				out[i] += float32(float32(dot+cb[r]) * float32(db[i]*sb[r]))
			}
		}
	}
}

// outRow is row r of a panel's results, cleared before the first block.
func outRow(dst *float32, ldd, r, block int) *[PanelWidth]float32 {
	out := (*[PanelWidth]float32)(slice(dst, r*ldd+PanelWidth)[r*ldd:])
	if block == 0 {
		clear(out[:])
	}
	return out
}

func mulF32Generic(dst *float32, ldd int, w *float32, ldw int, x *float32, ldx, k, rows, acc int) {
	ws := slice(w, (k-1)*ldw+PanelWidth)
	for r := range rows {
		in := slice(x, r*ldx+k)[r*ldx:]
		out := (*[PanelWidth]float32)(slice(dst, r*ldd+PanelWidth)[r*ldd:])
		sum := *out
		if acc == 0 {
			sum = [PanelWidth]float32{}
		}
		for i, v := range in {
			row := (*[PanelWidth]float32)(ws[i*ldw:])
			for c := range sum {
				sum[c] += float32(v * row[c])
			}
		}
		*out = sum
	}
}

// quantizeFloor is the least magnitude a block is scaled to, so that a block of
// zeros divides nothing by zero.
const quantizeFloor = 1e-30

func quantizeGeneric(x *float32, blocks int, q *int8, s, m *float32, c *int32, stride int) {
	xs, qs := slice(x, blocks*BlockSize), slice(q, blocks*BlockSize)
	n := (blocks-1)*stride + 1
	ss, ms, cs := slice(s, n), slice(m, n), slice(c, n)
	for b := range blocks {
		in, out := xs[b*BlockSize:][:BlockSize], qs[b*BlockSize:][:BlockSize]
		var top float32
		for _, v := range in {
			top = max(top, math.Float32frombits(math.Float32bits(v)&0x7fffffff))
		}
		top = max(top, quantizeFloor)
		inverse := 127 / top
		var sum int32
		for i, v := range in {
			out[i] = int8(math.RoundToEven(float64(v * inverse)))
			sum += int32(out[i])
		}
		scale := top / 127
		ss[b*stride], ms[b*stride], cs[b*stride] = scale, scale*float32(sum), -128*sum
	}
}

// sumSquareGeneric adds in 16 lanes, as the assembly does.
func sumSquareGeneric(x *float32, n int) float32 {
	var lanes [16]float32
	xs := slice(x, n)
	for i := 0; i < n; i += 16 {
		for l, v := range xs[i : i+16] {
			lanes[l] += float32(v * v)
		}
	}
	return foldLanes(&lanes)
}

// foldLanes adds the upper half of the lanes to the lower until one is left.
func foldLanes(lanes *[16]float32) float32 {
	for n := 8; n > 0; n /= 2 {
		for l := range n {
			lanes[l] += lanes[l+n]
		}
	}
	return lanes[0]
}

func scaleGeneric(dst, x, w *float32, n int, by float32) {
	ds, xs, ws := slice(dst, n), slice(x, n), slice(w, n)
	for i, v := range xs {
		ds[i] = float32(v*by) * ws[i]
	}
}

func addGeneric(dst, x *float32, n int) {
	ds := slice(dst, n)
	for i, v := range slice(x, n) {
		ds[i] += v
	}
}

func siluMulGeneric(dst, gate, up *float32, n int) {
	ds, us := slice(dst, n), slice(up, n)
	for i, g := range slice(gate, n) {
		ds[i] = g / (1 + exp(-g)) * us[i]
	}
}

// expSumGeneric replaces x by exp((x - max)*scale) and returns the sum, added in
// 16 lanes. scale is positive.
func expSumGeneric(x *float32, n int, scale float32) float32 {
	xs := slice(x, n)
	top := xs[0]
	for _, v := range xs {
		top = max(top, v)
	}
	var lanes [16]float32
	for i := 0; i < n; i += 16 {
		for l := range 16 {
			e := exp((xs[i+l] - top) * scale)
			xs[i+l] = e
			lanes[l] += e
		}
	}
	return foldLanes(&lanes)
}

// Coefficients of exp on [-ln 2 / 2, ln 2 / 2], as in the Cephes library's
// expf; ln 2 is in two parts so that the subtraction is exact.
const (
	expLow  = -87.33654
	expHigh = 88.37626
	log2e   = 1.44269504088896341
	ln2High = 0.693359375
	ln2Low  = -2.12194440e-4
	expC0   = 1.9875691500e-4
	expC1   = 1.3981999507e-3
	expC2   = 8.3334519073e-3
	expC3   = 4.1665795894e-2
	expC4   = 1.6666665459e-1
	expC5   = 5.0000001201e-1
)

// exp is e to the x within 2 units in the last place. x is clamped to the range
// of normal results: below it the result is about 1e-38, above about 2e38.
func exp(x float32) float32 {
	x = max(expLow, min(expHigh, x))
	n := float32(math.RoundToEven(float64(x * log2e)))
	r := x - float32(n*ln2High)
	r -= float32(n * ln2Low)
	p := float32(expC0*r) + expC1
	p = float32(p*r) + expC2
	p = float32(p*r) + expC3
	p = float32(p*r) + expC4
	p = float32(p*r) + expC5
	p = float32(p*float32(r*r)) + r
	p++
	return math.Float32frombits(math.Float32bits(p) + uint32(int32(n))<<23)
}

func widenGeneric(dst *float32, src *uint16, n int) {
	ds := slice(dst, n)
	for i, h := range slice(src, n) {
		ds[i] = f16.Float(h)
	}
}

func narrowGeneric(dst *uint16, src *float32, n int) {
	ds := slice(dst, n)
	for i, v := range slice(src, n) {
		ds[i] = f16.Bits(v)
	}
}

// transposeGeneric turns 16 rows of 16, ld apart, into 16 rows of 16 close
// together.
func transposeGeneric(dst, src *float32, ld int) {
	ds, ss := slice(dst, 256), slice(src, 15*ld+16)
	for i := range 16 {
		for j := range 16 {
			ds[j*16+i] = ss[i*ld+j]
		}
	}
}
