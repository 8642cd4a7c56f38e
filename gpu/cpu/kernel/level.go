package kernel

import (
	"fmt"
	"slices"
)

// Level is a family of implementations.
type Level uint8

// The levels, each faster than the one before.
const (
	Generic Level = iota // pure Go
	AVX2                 // amd64 with AVX2, FMA and F16C
	AVX512               // amd64 with AVX-512 F, BW, DQ, VL and VNNI
)

// String is the level's name.
func (l Level) String() string {
	switch l {
	case Generic:
		return "generic"
	case AVX2:
		return "avx2"
	case AVX512:
		return "avx512"
	}
	return fmt.Sprintf("level %d", uint8(l))
}

// Levels are the levels this machine can run, best last.
func Levels() []Level { return levels() }

// Best is the fastest level this machine can run.
func Best() Level {
	l := Levels()
	return l[len(l)-1]
}

// Kernels are the loops of one level. They are stateless and safe for
// concurrent use.
type Kernels struct {
	level Level
	// Tile heights of the matrix loops, falling, ending in 1: a loop of height h
	// takes a number of rows that is a multiple of h.
	q4  []tile[mulQ4]
	q8  []tile[mulQ8]
	f32 []tile[mulF32]

	quantize  func(x *float32, blocks int, q *int8, s, m *float32, c *int32, stride int)
	sumSquare func(x *float32, n int) float32
	scale     func(dst, x, w *float32, n int, by float32)
	add       func(dst, x *float32, n int)
	siluMul   func(dst, gate, up *float32, n int)
	expSum    func(x *float32, n int, scale float32) float32
	widen     func(dst *float32, src *uint16, n int)
	narrow    func(dst *uint16, src *float32, n int)
	transpose func(dst, src *float32, ld int)
}

type tile[F any] struct {
	rows int
	mul  F
}

// mulQ4 multiplies one 4-bit panel of blocks blocks with rows rows: dst[r][0:16],
// rows ldd floats apart. Activations are q, rows ldq bytes apart, with scales s
// and m at [block][row], blocks lds floats apart.
type mulQ4 func(dst *float32, ldd int, w *byte, blocks int, q *int8, ldq int, s, m *float32, lds, rows int)

// mulQ8 is the same for an 8-bit panel with half-precision scales d[block][16]
// and corrections c in place of m.
type mulQ8 func(dst *float32, ldd int, w *byte, d *uint16, blocks int, q *int8, ldq int, s *float32, c *int32, lds, rows int)

// mulF32 computes dst[r][0:16] = sum over i < k of x[r][i] * w[i][0:16], added to
// what dst holds if acc is 1. Rows of dst, w and x are ldd, ldw and ldx floats
// apart.
type mulF32 func(dst *float32, ldd int, w *float32, ldw int, x *float32, ldx, k, rows, acc int)

// New returns the loops of a level, or an error if the machine cannot run it.
func New(l Level) (*Kernels, error) {
	if !slices.Contains(Levels(), l) {
		return nil, fmt.Errorf("kernel: this machine cannot run %v", l)
	}
	k := kernels(l)
	k.level = l
	return k, nil
}

// Level is the level the loops belong to.
func (k *Kernels) Level() Level { return k.level }
