package kernel

// Acts are the activations that a product reads: rows of K values in float32
// and, once quantised, in 8 bits. They are reused from step to step and grow to
// the largest.
type Acts struct {
	Rows, K int
	// F is [Rows, K] row-major. Whoever computes the activations writes it.
	F []float32

	q []int8    // [Rows, K]: x = s*q within a block of 32
	s []float32 // [K/32][Rows]
	m []float32 // [K/32][Rows]: s times the sum of the block's q, for the minimum of Q4
	c []int32   // [K/32][Rows]: -128 times that sum, for the offset of Q8
}

// Resize makes room for rows rows of k values. The contents are undefined
// afterwards. quantized says that [Kernels.Quantize] will be called.
func (a *Acts) Resize(rows, k int, quantized bool) {
	a.Rows, a.K = rows, k
	a.F = grow(a.F, rows*k)
	if quantized {
		blocks := rows * (k / BlockSize)
		a.q, a.s, a.m, a.c = grow(a.q, rows*k), grow(a.s, blocks), grow(a.m, blocks), grow(a.c, blocks)
	}
}

// Row is row r of F.
func (a *Acts) Row(r int) []float32 { return a.F[r*a.K : (r+1)*a.K] }

func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// Quantize computes the 8-bit form of rows [from, to). K is a multiple of
// [BlockSize]. Each block's scale is its largest magnitude / 127.
func (k *Kernels) Quantize(a *Acts, from, to int) {
	for r := from; r < to; r++ {
		k.quantize(&a.F[r*a.K], a.K/BlockSize, &a.q[r*a.K], &a.s[r], &a.m[r], &a.c[r], a.Rows)
	}
}
