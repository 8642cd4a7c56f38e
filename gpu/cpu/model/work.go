package model

import "github.com/yardmaster/yardmaster/gpu/cpu/kernel"

// How a step's work is shared out among threads.

// rowsAtOnce is how many rows the element-wise steps give a thread; fewer are
// done by the caller, as waking the others would take longer.
const rowsAtOnce = 8

// product is a matrix and where its product with the activations goes, rows of
// the matrix's padded width.
type product struct {
	w   *kernel.Matrix
	dst []float32
}

// tasksPerThread cuts a product finer than the threads, so that one that comes
// late finds less to do.
const tasksPerThread = 4

// multiply computes all products on the team, their panels shared out together.
func (m *Model) multiply(a *kernel.Acts, products ...product) {
	total := 0
	for _, p := range products {
		total += p.w.Panels()
	}
	n := 1
	if m.team.Threads() > 1 {
		n = min(total, m.team.Threads()*tasksPerThread)
	}
	m.team.Run(n, func(i, _ int) {
		from, to := i*total/n, (i+1)*total/n
		for _, p := range products {
			panels := p.w.Panels()
			if lo, hi := max(from, 0), min(to, panels); lo < hi {
				m.k.Mul(p.dst, kernel.Padded(p.w.N), p.w, a, lo, hi)
			}
			from, to = from-panels, to-panels
		}
	})
}

// eachRow calls do for every row of the step, on the team if they are many.
func (m *Model) eachRow(do func(r int)) {
	rows := len(m.s.rows)
	if rows < 2*rowsAtOnce {
		for r := range rows {
			do(r)
		}
		return
	}
	n := (rows + rowsAtOnce - 1) / rowsAtOnce
	m.team.Run(n, func(i, _ int) {
		for r := i * rowsAtOnce; r < min((i+1)*rowsAtOnce, rows); r++ {
			do(r)
		}
	})
}

// quantized reports whether a product with one of ws needs 8-bit activations.
func quantized(ws ...*kernel.Matrix) bool {
	for _, w := range ws {
		if w.Format != kernel.F32 {
			return true
		}
	}
	return false
}

func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
