package gguf

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/yardmaster/yardmaster/gpu/cpu/f16"
)

// Dequantize decodes len(dst) elements of type t from src. It panics when
// len(dst) is not a multiple of the type's block, when src is too short, or
// when t is not supported; a [Tensor] of a [File] is none of these.
//
// Formats: https://github.com/ggml-org/ggml, ggml-quants.c and ggml-common.h.
func Dequantize(t Type, dst []float32, src []byte) {
	per, size := t.Block()
	if per == 0 || len(dst)%per != 0 || len(src) < len(dst)/per*size {
		panic(fmt.Sprintf("gguf: cannot decode %d elements of %v from %d bytes", len(dst), t, len(src)))
	}
	switch t {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case F16:
		for i := range dst {
			dst[i] = half(src[2*i:])
		}
	case BF16:
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
	case Q40:
		eachBlock(dst, src, per, size, decodeQ40)
	case Q41:
		eachBlock(dst, src, per, size, decodeQ41)
	case Q80:
		eachBlock(dst, src, per, size, decodeQ80)
	case Q4K:
		eachBlock(dst, src, per, size, decodeQ4K)
	case Q6K:
		eachBlock(dst, src, per, size, decodeQ6K)
	}
}

func eachBlock(dst []float32, src []byte, per, size int, decode func(dst []float32, b []byte)) {
	for i := 0; i < len(dst); i += per {
		decode(dst[i:i+per], src[i/per*size:][:size])
	}
}

func decodeQ40(dst []float32, b []byte) {
	d := half(b)
	for i, q := range b[2:18] {
		dst[i] = d * float32(int(q&15)-8)
		dst[i+16] = d * float32(int(q>>4)-8)
	}
}

func decodeQ41(dst []float32, b []byte) {
	d, m := half(b), half(b[2:])
	for i, q := range b[4:20] {
		dst[i] = float32(d*float32(q&15)) + m
		dst[i+16] = float32(d*float32(q>>4)) + m
	}
}

func decodeQ80(dst []float32, b []byte) {
	d := half(b)
	for i, q := range b[2:34] {
		dst[i] = d * float32(int8(q))
	}
}

// ScalesQ4K unpacks the 6-bit scales and minima of the eight sub-blocks of 32
// weights of a Q4_K block.
func ScalesQ4K(b []byte) (scales, mins [8]uint8) {
	p := b[4:16]
	for j := range 4 {
		scales[j], mins[j] = p[j]&63, p[j+4]&63
		scales[j+4] = p[j+8]&15 | p[j]>>6<<4
		mins[j+4] = p[j+8]>>4 | p[j+4]>>6<<4
	}
	return scales, mins
}

func decodeQ4K(dst []float32, b []byte) {
	d, dmin := half(b), half(b[2:])
	scales, mins := ScalesQ4K(b)
	for j := range 8 {
		scale, low := d*float32(scales[j]), dmin*float32(mins[j])
		shift := j % 2 * 4
		for i, q := range b[16+j/2*32:][:32] {
			dst[j*32+i] = float32(scale*float32(q>>shift&15)) - low
		}
	}
}

func decodeQ6K(dst []float32, b []byte) {
	d := half(b[208:])
	for i := range dst {
		// Each half of 128 weights is four quarters of 32; quarters 0 and 2, and 1
		// and 3, share bytes of low nibbles, all four share bytes of high pairs.
		h, quarter, l := i/128, i/32%4, i%32
		low := b[h*64+quarter%2*32+l] >> (quarter / 2 * 4) & 15
		high := b[128+h*32+l] >> (quarter * 2) & 3
		scale := int8(b[192+i/16])
		dst[i] = d * float32(scale) * float32(int(low|high<<4)-32)
	}
}

func half(b []byte) float32 { return f16.Float(binary.LittleEndian.Uint16(b)) }
