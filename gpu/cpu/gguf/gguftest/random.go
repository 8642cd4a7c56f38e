package gguftest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/yardmaster/yardmaster/gpu/cpu/f16"
	"github.com/yardmaster/yardmaster/gpu/cpu/gguf"
)

// Random makes n random weights of type t with a standard deviation of roughly
// sigma. Quantised types get random blocks: every bit pattern of the values
// and scales occurs.
func Random(rng *rand.Rand, t gguf.Type, n int, sigma float32) []byte {
	if t == gguf.F32 || t == gguf.F16 || t == gguf.BF16 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rng.NormFloat64()) * sigma
		}
		return Encode(t, x)
	}
	per, size := t.Block()
	if per == 0 || n%per != 0 {
		panic(fmt.Sprintf("gguftest: %d weights of type %v", n, t))
	}
	b := make([]byte, n/per*size)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	for at := 0; at < len(b); at += size {
		setScales(rng, t, b[at:at+size], sigma)
	}
	return b
}

// setScales overwrites a block's f16 fields so that its weights spread by
// sigma: uniform values of width w have a standard deviation of w/sqrt(12).
func setScales(rng *rand.Rand, t gguf.Type, b []byte, sigma float32) {
	put := func(at int, x float32) { binary.LittleEndian.PutUint16(b[at:], f16.Bits(x)) }
	vary := 0.75 + 0.5*rng.Float32()
	switch t {
	case gguf.Q40:
		put(0, sigma/4.6*vary)
	case gguf.Q41:
		put(0, sigma/4.6*vary)
		put(2, -7.5*sigma/4.6)
	case gguf.Q80:
		put(0, sigma/74*vary)
	case gguf.Q4K: // scales and minima around 32; 32*7.5 = 32*m
		put(0, sigma/4.6/34*vary)
		put(2, 7.5*sigma/4.6/34)
	case gguf.Q6K: // signed scales of about 74
		put(208, sigma/18.5/74*vary)
	case gguf.F32, gguf.F16, gguf.BF16: // have no blocks
	}
}
