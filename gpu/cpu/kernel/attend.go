package kernel

import "math"

// KVPlanes gives the keys or values of one KV head: of the block that holds a
// position, the plane [block tokens][head dim]. Exactly one function is set.
type KVPlanes struct {
	F32 func(block int) []float32
	F16 func(block int) []uint16
}

// Attention is the causal attention of consecutive rows of one sequence to one
// KV head.
type Attention struct {
	HeadDim     int // a multiple of 16
	Group       int // query heads that share the KV head
	BlockTokens int
	Keys        KVPlanes
	Values      KVPlanes
	// First is the position of the first row; row i sees positions 0 to First+i.
	First int
	Rows  int
	// Q and Out hold Rows rows, Stride floats apart, of Group heads close
	// together.
	Q, Out []float32
	Stride int
}

// AttendScratch is the memory of one thread's Attend. The zero value is ready.
type AttendScratch struct {
	q, out, scores, sums, rows, turned []float32
}

// valueRun is how many positions' values are widened at a time: they fit the
// first-level cache together with a tile of results.
const valueRun = 64

// Attend computes a. A row's result is independent of the other rows: scores
// are sums over the head's dimensions in ascending order, results sums over
// positions in ascending order.
func (k *Kernels) Attend(a *Attention, s *AttendScratch) {
	vectors, seen := a.Rows*a.Group, a.First+a.Rows
	width := Padded(seen)
	s.q = grow(s.q, vectors*a.HeadDim)
	s.out = grow(s.out, vectors*a.HeadDim)
	s.scores = grow(s.scores, vectors*width)
	s.rows = grow(s.rows, max(valueRun, PanelWidth)*a.HeadDim)
	s.turned = grow(s.turned, PanelWidth*a.HeadDim)
	row := a.Group * a.HeadDim
	for r := range a.Rows {
		copy(s.q[r*row:(r+1)*row], a.Q[r*a.Stride:])
	}
	k.scoreAll(a, s, width)
	clear(s.out)
	scale := float32(1 / math.Sqrt(float64(a.HeadDim)))
	s.sums = grow(s.sums, vectors)
	for v := range vectors {
		n := a.First + v/a.Group + 1
		x := s.scores[v*width : v*width+Padded(n)]
		for i := n; i < len(x); i++ {
			x[i] = float32(math.Inf(-1))
		}
		s.sums[v] = k.expSum(&x[0], len(x), scale)
	}
	k.mixAll(a, s, width)
	for r := range a.Rows {
		for g := range a.Group {
			v := r*a.Group + g
			inverse := 1 / s.sums[v]
			out := a.Out[r*a.Stride+g*a.HeadDim:][:a.HeadDim]
			for i, x := range s.out[v*a.HeadDim:][:a.HeadDim] {
				out[i] = x * inverse
			}
		}
	}
}

// scoreAll multiplies the queries with the keys, 16 positions at a time, for
// the rows that see the first of them.
func (k *Kernels) scoreAll(a *Attention, s *AttendScratch, width int) {
	hd := a.HeadDim
	for p := 0; p < a.First+a.Rows; p += PanelWidth {
		k.load(&a.Keys, a, s.rows, p, min(p+PanelWidth, a.First+a.Rows))
		for d := 0; d < hd; d += PanelWidth {
			k.transpose(&s.turned[d*PanelWidth], &s.rows[d], hd)
		}
		v := max(0, p-a.First) * a.Group
		k.gemm(s.scores[v*width+p:], width, s.turned, PanelWidth, s.q[v*hd:], hd, hd, PanelWidth, a.Rows*a.Group-v, 0)
	}
}

// mixAll adds the values weighted by the scores. Rows that see only a part of a
// run are done one by one, so that no row ever adds a position it does not see.
func (k *Kernels) mixAll(a *Attention, s *AttendScratch, width int) {
	hd, seen := a.HeadDim, a.First+a.Rows
	for p := 0; p < seen; p += valueRun {
		end := min(p+valueRun, seen)
		k.load(&a.Values, a, s.rows, p, end)
		whole := max(0, end-1-a.First) // the first row that sees the whole run
		for r := max(0, p-a.First); r < whole; r++ {
			v := r * a.Group
			k.gemm(s.out[v*hd:], hd, s.rows, hd, s.scores[v*width+p:], width, a.First+r+1-p, hd, a.Group, 1)
		}
		v := whole * a.Group
		k.gemm(s.out[v*hd:], hd, s.rows, hd, s.scores[v*width+p:], width, end-p, hd, a.Rows*a.Group-v, 1)
	}
}

// load widens positions [from, to) into rows; the rest of a panel is zero.
func (k *Kernels) load(planes *KVPlanes, a *Attention, rows []float32, from, to int) {
	hd := a.HeadDim
	for p := from; p < to; {
		block, at := p/a.BlockTokens, p%a.BlockTokens
		n := min(a.BlockTokens-at, to-p) * hd
		dst := rows[(p-from)*hd:][:n]
		if planes.F16 != nil {
			src := planes.F16(block)[at*hd:][:n]
			k.widen(&dst[0], &src[0], n)
		} else {
			copy(dst, planes.F32(block)[at*hd:][:n])
		}
		p += n / hd
	}
	clear(rows[(to-from)*hd : max(to-from, PanelWidth)*hd])
}
