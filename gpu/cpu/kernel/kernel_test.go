package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/gpu/cpu/f16"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// eachLevel runs a test at every level this machine has.
func eachLevel(t *testing.T, test func(t *testing.T, k *Kernels)) {
	for _, l := range Levels() {
		t.Run(l.String(), func(t *testing.T) {
			k, err := New(l)
			if err != nil {
				t.Fatal(err)
			}
			test(t, k)
		})
	}
}

func random(rng *rand.Rand, n int, sigma float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64() * sigma)
	}
	return x
}

// close64 fails unless got is within tolerance times scale of want.
func close64(t *testing.T, what string, got float32, want, scale, tolerance float64) {
	t.Helper()
	if d := math.Abs(float64(got) - want); !(d <= tolerance*scale) {
		t.Fatalf("%s = %v, want %v within %v", what, got, want, tolerance*scale)
	}
}

// randomMatrix fills a matrix with weights of about 1/sqrt(k) and returns what
// it holds, decoded.
func randomMatrix(rng *rand.Rand, f Format, n, k int) (*Matrix, [][]float32) {
	m := NewMatrix(f, n, k)
	for r := range n {
		fillRow(rng, m, r)
	}
	rows := make([][]float32, n)
	for r := range rows {
		rows[r] = make([]float32, k)
		m.Row(r, rows[r])
	}
	return m, rows
}

func fillRow(rng *rand.Rand, m *Matrix, r int) {
	sigma := 1 / math.Sqrt(float64(m.K))
	if m.Format == F32 {
		m.SetF32(r, random(rng, m.K, sigma))
		return
	}
	for b := range m.K / BlockSize {
		d := f16.Bits(float32(sigma / 4.6 * (0.5 + rng.Float64())))
		if m.Format == Q4 {
			var q [16]byte
			for i := range q {
				q[i] = byte(rng.Uint32())
			}
			m.SetQ4(r, b, d, f16.Bits(float32(-7*sigma/4.6)), &q)
			continue
		}
		var q [32]byte
		for i := range q {
			q[i] = byte(rng.Uint32()) // -128 included
		}
		m.SetQ8(r, b, f16.Bits(f16.Float(d)/16), &q)
	}
}

func acts(k *Kernels, x []float32, rows, width int) *Acts {
	a := &Acts{}
	a.Resize(rows, width, width%BlockSize == 0)
	copy(a.F, x)
	if width%BlockSize == 0 {
		k.Quantize(a, 0, rows)
	}
	return a
}

// value is activation i of row r as the format's product reads it.
func (a *Acts) value(f Format, r, i int) float64 {
	if f == F32 {
		return float64(a.F[r*a.K+i])
	}
	return float64(a.s[i/BlockSize*a.Rows+r]) * float64(a.q[r*a.K+i])
}

// TestMul compares with sums in float64 of the same decoded weights and the same
// quantised activations: only float32 rounding may differ, at most 2e-6 of the
// sum of magnitudes.
func TestMul(t *testing.T) {
	eachLevel(t, func(t *testing.T, k *Kernels) {
		rng := rand.New(rand.NewPCG(1, 1))
		for _, f := range []Format{F32, Q4, Q8} {
			for _, shape := range [][3]int{{1, 16, 32}, {3, 40, 64}, {8, 16, 96}, {15, 24, 288}, {33, 8, 32}} {
				rows, n, width := shape[0], shape[1], shape[2]
				w, decoded := randomMatrix(rng, f, n, width)
				x := acts(k, random(rng, rows*width, 1), rows, width)
				ldd := Padded(n) + 16
				dst := random(rng, rows*ldd, 1) // garbage that must be overwritten
				k.Mul(dst, ldd, w, x, 0, w.Panels())
				for r := range rows {
					for c := range n {
						var want, size float64
						for i := range width {
							p := x.value(f, r, i) * float64(decoded[c][i])
							want += p
							size += math.Abs(p)
						}
						if f == Q4 {
							size *= 4 // scale and minimum are summed apart and cancel
						}
						close64(t, fmt.Sprintf("format %d %v [%d][%d]", f, shape, r, c), dst[r*ldd+c], want, size, 2e-6)
					}
				}
			}
		}
	})
}

// TestIntegersExact uses scales of one, so that sums are whole numbers that
// float32 holds: every level must give the very same.
func TestIntegersExact(t *testing.T) {
	const rows, n, width = 11, 32, 96
	eachLevel(t, func(t *testing.T, k *Kernels) {
		rng := rand.New(rand.NewPCG(2, 2))
		x := make([]float32, rows*width)
		for i := range x {
			x[i] = float32(rng.IntN(255) - 127)
			if i%BlockSize == 0 {
				x[i] = 127 // so that the block's scale is one
			}
		}
		extreme := func(i int) bool { return i/width == 0 }
		for i := range x {
			if extreme(i) {
				x[i] = 127 * float32(1-i%2*2)
			}
		}
		a := acts(k, x, rows, width)
		one := f16.Bits(1)
		q4, q8 := NewMatrix(Q4, n, width), NewMatrix(Q8, n, width)
		for r := range n {
			for b := range width / BlockSize {
				var u4 [16]byte
				var u8 [32]byte
				for i := range u8 {
					u8[i] = byte(rng.Uint32())
					u4[i/2] = byte(rng.Uint32())
					if r == 0 { // the largest magnitudes
						u8[i], u4[i/2] = 0x80, 0xff
					}
				}
				q4.SetQ4(r, b, one, 0, &u4)
				q8.SetQ8(r, b, one, &u8)
			}
		}
		for _, w := range []*Matrix{q4, q8} {
			dst := make([]float32, rows*n)
			k.Mul(dst, n, w, a, 0, w.Panels())
			row := make([]float32, width)
			for c := range n {
				w.Row(c, row)
				for r := range rows {
					var want float32
					for i, v := range row {
						want += v * x[r*width+i]
					}
					if got := dst[r*n+c]; got != want {
						t.Fatalf("format %d [%d][%d] = %v, want %v", w.Format, r, c, got, want)
					}
				}
			}
		}
	})
}

// TestRowsIndependent: a row's results do not depend on the rows beside it, nor
// on how the panels were shared out.
func TestRowsIndependent(t *testing.T) {
	eachLevel(t, func(t *testing.T, k *Kernels) {
		rapid.Check(t, func(t *rapid.T) {
			rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
			rows := rapid.IntRange(2, 27).Draw(t, "rows")
			f := Format(rapid.IntRange(0, 2).Draw(t, "format"))
			n, width := 8*rapid.IntRange(1, 6).Draw(t, "n"), 32*rapid.IntRange(1, 5).Draw(t, "k")
			w, _ := randomMatrix(rng, f, n, width)
			x := random(rng, rows*width, 1)
			ldd := Padded(n)
			dst := make([]float32, rows*ldd)
			cut := rapid.IntRange(0, w.Panels()).Draw(t, "cut")
			all := acts(k, x, rows, width)
			k.Mul(dst, ldd, w, all, 0, cut)
			k.Mul(dst, ldd, w, all, cut, w.Panels())
			alone := make([]float32, ldd)
			for r := range rows {
				k.Mul(alone, ldd, w, acts(k, x[r*width:(r+1)*width], 1, width), 0, w.Panels())
				if !slices.Equal(alone[:n], dst[r*ldd:r*ldd+n]) {
					t.Fatalf("row %d of %d differs from itself alone", r, rows)
				}
			}
		})
	})
}

// TestQuantize: all levels agree bit for bit, and a value is off by at most
// half a scale.
func TestQuantize(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	const rows, width = 3, 192
	x := random(rng, rows*width, 3)
	clear(x[32:64])                             // a block of zeros
	copy(x[64:], []float32{0.5, 1.5, 2.5, 127}) // ties
	x[128] = 1e-35                              // below what is scaled
	clear(x[129:160])
	g := genericKernels()
	want := acts(g, x, rows, width)
	for i, v := range x {
		s := float64(want.s[i%width/BlockSize*rows+i/width])
		if d := math.Abs(float64(v) - want.value(Q8, i/width, i%width)); d > s*0.5001 {
			t.Fatalf("value %d off by %v of a scale", i, d/s)
		}
	}
	eachLevel(t, func(t *testing.T, k *Kernels) {
		got := acts(k, x, rows, width)
		if !slices.Equal(got.q, want.q) || !slices.Equal(got.s, want.s) || !slices.Equal(got.m, want.m) || !slices.Equal(got.c, want.c) {
			t.Error("differs from pure Go")
		}
	})
}

func TestElementwise(t *testing.T) {
	eachLevel(t, func(t *testing.T, k *Kernels) {
		rng := rand.New(rand.NewPCG(4, 4))
		for _, n := range []int{16, 48, 576} {
			x, w, y := random(rng, n, 2), random(rng, n, 1), make([]float32, n)
			k.RMSNorm(y, x, w, 1e-5)
			var sum float64
			for _, v := range x {
				sum += float64(v) * float64(v)
			}
			inverse := 1 / math.Sqrt(sum/float64(n)+1e-5)
			for i := range x {
				want := float64(x[i]) * inverse * float64(w[i])
				close64(t, "norm", y[i], want, math.Abs(want), 1e-6)
			}

			x[0], x[1], x[2], x[3] = 100, -100, 1e30, -1e4
			k.SiluMul(y, x, w)
			for i, v := range x {
				want := float64(v) / (1 + math.Exp(-float64(v))) * float64(w[i])
				close64(t, fmt.Sprintf("silu(%v)", v), y[i], want, math.Abs(want)+1e-8, 1e-6)
			}

			z := slices.Clone(w)
			k.Add(z, x)
			for i := range z {
				if z[i] != w[i]+x[i] {
					t.Fatalf("sum %v, want %v", z[i], w[i]+x[i])
				}
			}

			h, back := make([]uint16, n), make([]float32, n)
			x[4], x[5], x[6] = 65519, 1e-7, float32(math.Inf(-1))
			k.Narrow(h, x)
			k.widen(&back[0], &h[0], n)
			for i, v := range x {
				if h[i] != f16.Bits(v) || back[i] != f16.Float(h[i]) {
					t.Fatalf("%v became %#04x and %v", v, h[i], back[i])
				}
			}
		}
	})
}

func TestExpSum(t *testing.T) {
	eachLevel(t, func(t *testing.T, k *Kernels) {
		rng := rand.New(rand.NewPCG(5, 5))
		for _, n := range []int{1, 16, 17, 300} {
			x := random(rng, Padded(n), 20)
			for i := n; i < len(x); i++ {
				x[i] = float32(math.Inf(-1))
			}
			in, top := slices.Clone(x), slices.Max(x)
			got := k.expSum(&x[0], len(x), 0.125)
			var sum float64
			for i, v := range in[:n] {
				want := math.Exp((float64(v) - float64(top)) * 0.125)
				close64(t, "exp", x[i], want, want, 1e-6)
				sum += want
			}
			close64(t, "sum", got, sum, sum, 1e-6)
		}
	})
}

func TestTranspose(t *testing.T) {
	eachLevel(t, func(t *testing.T, k *Kernels) {
		const ld = 20
		src := random(rand.New(rand.NewPCG(6, 6)), 15*ld+16, 1)
		dst := make([]float32, 256)
		k.transpose(&dst[0], &src[0], ld)
		for i := range 16 {
			for j := range 16 {
				if dst[j*16+i] != src[i*ld+j] {
					t.Fatalf("[%d][%d] = %v, want %v", j, i, dst[j*16+i], src[i*ld+j])
				}
			}
		}
	})
}

// attentionCase is a sequence with keys and values in paged planes.
type attentionCase struct {
	hd, group, blockTokens, length int
	q                              []float32 // [length][group*hd]
	keys, values                   []float32 // [blocks][block tokens][hd]
	half                           bool
}

func newAttentionCase(rng *rand.Rand, hd, group, blockTokens, length int, half bool) *attentionCase {
	c := &attentionCase{hd: hd, group: group, blockTokens: blockTokens, length: length, half: half}
	room := (length + blockTokens - 1) / blockTokens * blockTokens * hd
	c.q, c.keys, c.values = random(rng, length*group*hd, 1), random(rng, room, 1), random(rng, room, 1)
	if half {
		for i := range c.keys {
			c.keys[i], c.values[i] = f16.Float(f16.Bits(c.keys[i])), f16.Float(f16.Bits(c.values[i]))
		}
	}
	// What lies beyond the sequence must not matter.
	for i := length * hd; i < room; i++ {
		c.keys[i], c.values[i] = float32(math.NaN()), float32(math.NaN())
	}
	return c
}

func (c *attentionCase) planes(x []float32) KVPlanes {
	n := c.blockTokens * c.hd
	if !c.half {
		return KVPlanes{F32: func(b int) []float32 { return x[b*n : (b+1)*n] }}
	}
	return KVPlanes{F16: func(b int) []uint16 {
		h := make([]uint16, n)
		for i, v := range x[b*n : (b+1)*n] {
			h[i] = f16.Bits(v)
		}
		return h
	}}
}

func (c *attentionCase) run(k *Kernels, first, rows int) []float32 {
	stride := c.group * c.hd
	out := make([]float32, rows*stride)
	var s AttendScratch
	k.Attend(&Attention{
		HeadDim: c.hd, Group: c.group, BlockTokens: c.blockTokens,
		Keys: c.planes(c.keys), Values: c.planes(c.values),
		First: first, Rows: rows, Q: c.q[first*stride:], Out: out, Stride: stride,
	}, &s)
	return out
}

func TestAttend(t *testing.T) {
	eachLevel(t, func(t *testing.T, k *Kernels) {
		rng := rand.New(rand.NewPCG(7, 7))
		for _, half := range []bool{false, true} {
			c := newAttentionCase(rng, 32, 3, 16, 83, half)
			got := c.run(k, 0, c.length)
			for p := range c.length {
				for g := range c.group {
					at := (p*c.group + g) * c.hd
					want := c.naive(p, c.q[at:at+c.hd])
					for d := range want {
						close64(t, fmt.Sprintf("position %d head %d [%d]", p, g, d), got[at+d], want[d], 1, 2e-6)
					}
				}
			}
		}
	})
}

func (c *attentionCase) naive(p int, q []float32) []float64 {
	weights, sum := make([]float64, p+1), 0.0
	for i := range weights {
		var dot float64
		for d, v := range q {
			dot += float64(v) * float64(c.keys[i*c.hd+d])
		}
		weights[i] = math.Exp(dot / math.Sqrt(float64(c.hd)))
		sum += weights[i]
	}
	out := make([]float64, c.hd)
	for i, w := range weights {
		for d := range out {
			out[d] += w / sum * float64(c.values[i*c.hd+d])
		}
	}
	return out
}

// TestAttendCuts: a row's result does not depend on which rows it is computed
// with, nor on the size of blocks.
func TestAttendCuts(t *testing.T) {
	eachLevel(t, func(t *testing.T, k *Kernels) {
		rapid.Check(t, func(t *rapid.T) {
			rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
			length := rapid.IntRange(1, 150).Draw(t, "length")
			c := newAttentionCase(rng, 16*rapid.IntRange(1, 4).Draw(t, "hd/16"), rapid.IntRange(1, 4).Draw(t, "group"),
				rapid.SampledFrom([]int{16, 5, 64}).Draw(t, "block"), length, rapid.Bool().Draw(t, "half"))
			whole := c.run(k, 0, length)
			for first := 0; first < length; {
				rows := rapid.IntRange(1, length-first).Draw(t, "rows")
				stride := c.group * c.hd
				if part := c.run(k, first, rows); !slices.Equal(part, whole[first*stride:(first+rows)*stride]) {
					t.Fatalf("rows %d to %d differ from the whole", first, first+rows)
				}
				first += rows
			}
		})
	})
}

func TestQuantizeQ8(t *testing.T) {
	m := NewMatrix(Q8, 16, 32)
	x := random(rand.New(rand.NewPCG(8, 8)), 32, 1)
	top := float64(max(slices.Max(x), -slices.Min(x)))
	got := make([]float32, 32)
	m.QuantizeQ8(3, 0, x)
	m.Row(3, got)
	for i, v := range x {
		close64(t, "weight", got[i], float64(v), top, 1.0/250)
	}
	m.QuantizeQ8(4, 0, make([]float32, 32))
	m.Row(4, got)
	if slices.ContainsFunc(got, func(v float32) bool { return v != 0 }) {
		t.Errorf("a block of zeros became %v", got)
	}
}

func TestTeam(t *testing.T) {
	for _, threads := range []int{1, 2, 5} {
		team := NewTeam(threads)
		var byThread [5]atomic.Int64
		for round := range 200 {
			done := make([]atomic.Int32, round)
			team.Run(round, func(task, thread int) {
				done[task].Add(1)
				byThread[thread].Add(1)
			})
			for i := range done {
				if n := done[i].Load(); n != 1 {
					t.Fatalf("%d threads, round %d: task %d done %d times", threads, round, i, n)
				}
			}
		}
		team.Close()
		if threads == 1 && team.Threads() != 1 {
			t.Errorf("%d threads, want 1", team.Threads())
		}
	}
	NewTeam(3).Close() // before any step
}

// TestTeamSleeps lets the threads fall asleep between steps.
func TestTeamSleeps(t *testing.T) {
	team := NewTeam(3)
	defer team.Close()
	for range 20 {
		for i := range team.members {
			for !team.members[i].asleep.Load() {
				runtime.Gosched()
			}
		}
		var n atomic.Int32
		team.Run(50, func(int, int) { n.Add(1); runtime.Gosched() })
		if n.Load() != 50 {
			t.Fatalf("%d of 50 tasks", n.Load())
		}
	}
}

func TestNew(t *testing.T) {
	if _, err := New(Level(9)); err == nil {
		t.Error("a level that does not exist")
	}
	if got := Best().String(); got == "" {
		t.Error("no name")
	}
}
