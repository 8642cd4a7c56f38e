package kernel

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/yardmaster/yardmaster/gpu/cpu/f16"
	"github.com/yardmaster/yardmaster/gpu/cpu/pages"
)

// PanelWidth is the number of output channels of a panel. Rows of results have
// room for a whole number of panels: see [Padded].
const PanelWidth = 16

// BlockSize is the number of weights, or activations, that share a scale.
const BlockSize = 32

// Padded is n rounded up to whole panels.
func Padded(n int) int { return (n + PanelWidth - 1) / PanelWidth * PanelWidth }

// Format is how a matrix's weights are stored.
type Format uint8

// The formats.
const (
	// F32 is exact: float32, [input][16 channels].
	F32 Format = iota
	// Q4 is w = d*u + m with u in 0..15. A block of 32 inputs is 16 halves d, 16
	// halves m, then four groups of 16 channels x 4 bytes: byte j of group g
	// holds input 4g+j low and 4g+j+16 high.
	Q4
	// Q8 is w = d*(u-128) with u in 0..255. A panel is its scales, [block][16]
	// halves, padded to 64 bytes, then blocks of eight groups of 16 channels x 4
	// bytes: byte j of group g is input 4g+j.
	Q8
)

const (
	q4Block  = 2*2*PanelWidth + PanelWidth*BlockSize/2
	q8Block  = PanelWidth * BlockSize
	q8Scales = 2 * PanelWidth
)

// Matrix is a weight matrix of N output channels by K inputs, in panels. Fill
// it row by row with the Set methods before use; different panels may be
// filled concurrently. Channels from N to the end of the last panel are zero.
type Matrix struct {
	N, K   int
	Format Format
	panel  int // bytes of a panel, a multiple of pages.Alignment
	data   []byte
}

// NewMatrix makes a matrix with its memory. K must be a multiple of [BlockSize]
// unless the format is F32.
func NewMatrix(f Format, n, k int) *Matrix {
	m := PlanMatrix(f, n, k)
	Allocate(m)
	return m
}

// PlanMatrix makes a matrix without memory, for [Allocate].
func PlanMatrix(f Format, n, k int) *Matrix {
	m := &Matrix{N: n, K: k, Format: f}
	if n <= 0 || k <= 0 || f != F32 && k%BlockSize != 0 {
		panic(fmt.Sprintf("kernel: no matrix of %d x %d in format %d", n, k, f))
	}
	switch f {
	case F32:
		m.panel = k * PanelWidth * 4
	case Q4:
		m.panel = k / BlockSize * q4Block
	case Q8:
		m.panel = m.q8Values() + k/BlockSize*q8Block
	}
	return m
}

// Allocate gives planned matrices their memory, all in one piece on large pages
// where the system has them: with small ones, a product that streams through
// megabytes waits for address translation. Matrices start at a cache row, so
// that a vector load never touches two.
func Allocate(ms ...*Matrix) {
	total := 0
	for _, m := range ms {
		total += m.panel * m.Panels()
	}
	region := pages.Alloc(total)
	for _, m := range ms {
		n := m.panel * m.Panels()
		m.data, region = region[:n:n], region[n:]
	}
}

// Panels is the number of panels.
func (m *Matrix) Panels() int { return Padded(m.N) / PanelWidth }

// q8Values is the offset of a Q8 panel's first block.
func (m *Matrix) q8Values() int {
	return (m.K/BlockSize*q8Scales + pages.Alignment - 1) &^ (pages.Alignment - 1)
}

// panelOf returns the panel with channel row and the channel's place in it.
func (m *Matrix) panelOf(row int) (panel []byte, lane int) {
	p := row / PanelWidth
	return m.data[p*m.panel : (p+1)*m.panel], row % PanelWidth
}

// SetF32 sets a row of an F32 matrix to x [K].
func (m *Matrix) SetF32(row int, x []float32) {
	m.want(F32)
	panel, lane := m.panelOf(row)
	w := floats(panel)
	for i, v := range x[:m.K] {
		w[i*PanelWidth+lane] = v
	}
}

// SetQ4 sets the weights block*32.. of a row of a Q4 matrix: d and low (the minimum) are
// half-precision bits, byte j of q holds u of input j low and of j+16 high.
func (m *Matrix) SetQ4(row, block int, d, low uint16, q *[16]byte) {
	m.want(Q4)
	panel, lane := m.panelOf(row)
	b := panel[block*q4Block:][:q4Block]
	h := halves(b)
	h[lane], h[PanelWidth+lane] = d, low
	for g := range 4 {
		*(*[4]byte)(b[4*PanelWidth+g*4*PanelWidth+lane*4:]) = *(*[4]byte)(q[4*g:])
	}
}

// SetQ8 sets the weights block*32.. of a row of a Q8 matrix: d is half-precision
// bits, q holds signed values in two's complement.
func (m *Matrix) SetQ8(row, block int, d uint16, q *[32]byte) {
	m.want(Q8)
	panel, lane := m.panelOf(row)
	halves(panel)[block*PanelWidth+lane] = d
	b := panel[m.q8Values()+block*q8Block:][:q8Block]
	for g := range 8 {
		for j := range 4 {
			b[g*4*PanelWidth+lane*4+j] = q[4*g+j] ^ 0x80
		}
	}
}

// QuantizeQ8 sets the weights block*32.. of a row of a Q8 matrix to the nearest
// that the format can hold to x [32].
func (m *Matrix) QuantizeQ8(row, block int, x []float32) {
	var top float32
	for _, v := range x[:BlockSize] {
		top = max(top, float32(math.Abs(float64(v))))
	}
	d := f16.Bits(top / 127)
	scale := f16.Float(d)
	var q [32]byte
	if scale > 0 {
		for i, v := range x[:BlockSize] {
			q[i] = byte(int8(max(-127, min(127, math.RoundToEven(float64(v/scale))))))
		}
	}
	m.SetQ8(row, block, d, &q)
}

// Row decodes row into dst [K].
func (m *Matrix) Row(row int, dst []float32) {
	panel, lane := m.panelOf(row)
	switch m.Format {
	case F32:
		w := floats(panel)
		for i := range dst[:m.K] {
			dst[i] = w[i*PanelWidth+lane]
		}
	case Q4:
		for b := range m.K / BlockSize {
			q4Row(panel[b*q4Block:][:q4Block], lane, dst[b*BlockSize:][:BlockSize])
		}
	case Q8:
		d := halves(panel)
		for b := range m.K / BlockSize {
			scale := f16.Float(d[b*PanelWidth+lane])
			values := panel[m.q8Values()+b*q8Block:][:q8Block]
			for i := range BlockSize {
				dst[b*BlockSize+i] = scale * float32(int(values[i/4*4*PanelWidth+lane*4+i%4])-128)
			}
		}
	}
}

func q4Row(b []byte, lane int, dst []float32) {
	h := halves(b)
	d, low := f16.Float(h[lane]), f16.Float(h[PanelWidth+lane])
	for i := range BlockSize / 2 {
		u := b[4*PanelWidth+i/4*4*PanelWidth+lane*4+i%4]
		dst[i] = float32(d*float32(u&15)) + low
		dst[i+BlockSize/2] = float32(d*float32(u>>4)) + low
	}
}

func (m *Matrix) want(f Format) {
	if m.Format != f {
		panic(fmt.Sprintf("kernel: setting format %d of a matrix in format %d", f, m.Format))
	}
}

func halves(b []byte) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/2)
}

func floats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}
