package kernel

import (
	"fmt"
	"unsafe"
)

// Mul computes panels [from, to) of x·wᵀ: dst[r][n] for the channels n of those
// panels and every row r of x, rows of dst ldd floats apart. dst has room for
// [Padded] channels in every row.
//
// Each output is one sum over the inputs in ascending order, whatever the
// number of rows and panels. x is quantised unless w's format is F32.
func (k *Kernels) Mul(dst []float32, ldd int, w *Matrix, x *Acts, from, to int) {
	if w.K != x.K || from < 0 || to > w.Panels() || ldd < Padded(w.N) || len(dst) < x.Rows*ldd {
		panic(fmt.Sprintf("kernel: product of %d x %d by %d x %d, panels %d to %d, into %d rows of %d",
			x.Rows, x.K, w.N, w.K, from, to, len(dst)/max(ldd, 1), ldd))
	}
	for p := from; p < to; p++ {
		k.mulPanel(dst[p*PanelWidth:], ldd, w, x, w.data[p*w.panel:(p+1)*w.panel])
	}
}

func (k *Kernels) mulPanel(dst []float32, ldd int, w *Matrix, x *Acts, panel []byte) {
	switch w.Format {
	case Q4:
		each(k.q4, x.Rows, func(mul mulQ4, r, n int) {
			mul(&dst[r*ldd], ldd, &panel[0], w.K/BlockSize, &x.q[r*x.K], x.K, &x.s[r], &x.m[r], x.Rows, n)
		})
	case Q8:
		each(k.q8, x.Rows, func(mul mulQ8, r, n int) {
			mul(&dst[r*ldd], ldd, &panel[w.q8Values()], &halves(panel)[0], w.K/BlockSize,
				&x.q[r*x.K], x.K, &x.s[r], &x.c[r], x.Rows, n)
		})
	case F32:
		each(k.f32, x.Rows, func(mul mulF32, r, n int) {
			mul(&dst[r*ldd], ldd, &floats(panel)[0], PanelWidth, &x.F[r*x.K], x.K, w.K, n, 0)
		})
	}
}

// each cuts rows into runs for the tiles, tallest first.
func each[F any](tiles []tile[F], rows int, do func(mul F, row, n int)) {
	at := 0
	for _, t := range tiles {
		if n := (rows - at) / t.rows * t.rows; n > 0 {
			do(t.mul, at, n)
			at += n
		}
	}
}

// gemm adds x·w to dst, or sets it: dst is [rows][n] with n whole panels, x is
// [rows][depth], w is [depth][n].
func (k *Kernels) gemm(dst []float32, ldd int, w []float32, ldw int, x []float32, ldx, depth, n, rows, acc int) {
	if rows == 0 || depth == 0 {
		return
	}
	_ = dst[(rows-1)*ldd+n-1]
	_ = w[(depth-1)*ldw+n-1]
	_ = x[(rows-1)*ldx+depth-1]
	for c := 0; c < n; c += PanelWidth {
		each(k.f32, rows, func(mul mulF32, r, count int) {
			mul(&dst[r*ldd+c], ldd, &w[c], ldw, &x[r*ldx], ldx, depth, count, acc)
		})
	}
}

func slice[T any](p *T, n int) []T { return unsafe.Slice(p, n) }
