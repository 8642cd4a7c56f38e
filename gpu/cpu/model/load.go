package model

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/gpu/cpu/f16"
	"github.com/yardmaster/yardmaster/gpu/cpu/gguf"
	"github.com/yardmaster/yardmaster/gpu/cpu/kernel"
)

// layer is the weights of one transformer block. Biases and head norms are nil
// where the model has none.
type layer struct {
	attnNorm, ffnNorm []float32
	q, k, v, o        *kernel.Matrix
	qBias, kBias      []float32
	vBias, oBias      []float32
	qNorm, kNorm      []float32 // per head dimension
	gate, up, down    *kernel.Matrix
}

// loader turns tensors into matrices. It first plans every tensor's work,
// then does it on all threads.
type loader struct {
	f        *gguf.File
	exact    bool
	used     map[string]bool
	matrices []*kernel.Matrix
	chunks   []chunk
	err      error
}

// chunk is some rows of one tensor: a whole number of panels, so that chunks
// never share one.
type chunk struct {
	t        *gguf.Tensor
	from, to int // rows
	m        *kernel.Matrix
	vector   []float32 // instead of m
	hash     uint64
}

// chunkBytes is about the size of a chunk: small enough to share out evenly and
// to stay in the second-level cache.
const chunkBytes = 512 << 10

func (ld *loader) fail(format string, args ...any) {
	if ld.err == nil {
		ld.err = fmt.Errorf("%w: %s", ErrUnsupported, fmt.Sprintf(format, args...))
	}
}

// find returns the tensor if it has the given shape (input width, then rows).
func (ld *loader) find(name string, required bool, shape ...int) *gguf.Tensor {
	t, ok := ld.f.Tensor(name)
	if !ok {
		if required {
			ld.fail("tensor %q is missing", name)
		}
		return nil
	}
	ld.used[name] = true
	got := t.Shape
	for len(got) > len(shape) && got[len(got)-1] == 1 {
		got = got[:len(got)-1]
	}
	same := len(got) == len(shape)
	for i := range shape {
		same = same && got[i] == shape[i]
	}
	if !same {
		ld.fail("tensor %q has shape %v, want %v", name, t.Shape, shape)
		return nil
	}
	return t
}

func (ld *loader) vector(name string, required bool, n int) []float32 {
	t := ld.find(name, required, n)
	if t == nil {
		return nil
	}
	v := make([]float32, n)
	ld.chunks = append(ld.chunks, chunk{t: t, to: 1, vector: v})
	return v
}

// matrix plans the matrix with in inputs and out outputs.
func (ld *loader) matrix(name string, in, out int) *kernel.Matrix {
	t := ld.find(name, true, in, out)
	if t == nil {
		return nil
	}
	m := kernel.PlanMatrix(ld.format(t.Type), out, in)
	ld.matrices = append(ld.matrices, m)
	rowBytes := t.Type.Bytes(in)
	step := max(chunkBytes/rowBytes/kernel.PanelWidth, 1) * kernel.PanelWidth
	for from := 0; from < out; from += step {
		ld.chunks = append(ld.chunks, chunk{t: t, from: from, to: min(from+step, out), m: m})
	}
	return m
}

// format is the panel format that serves a tensor type.
func (ld *loader) format(t gguf.Type) kernel.Format {
	if ld.exact {
		return kernel.F32
	}
	switch t {
	case gguf.Q40, gguf.Q41, gguf.Q4K:
		return kernel.Q4
	case gguf.Q80, gguf.Q6K:
		return kernel.Q8
	case gguf.F32, gguf.F16, gguf.BF16:
	}
	return kernel.F32
}

// run does the planned work on team and returns a hash of all tensors read.
func (ld *loader) run(team *kernel.Team) (uint64, error) {
	var (
		mu   sync.Mutex
		errs []error
	)
	kernel.Allocate(ld.matrices...)
	buffers := make([]buffer, team.Threads())
	team.Run(len(ld.chunks), func(task, thread int) {
		if err := ld.chunks[task].load(ld.f, &buffers[thread]); err != nil {
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		}
	})
	h := xxhash.New()
	for i := range ld.chunks {
		_ = binary.Write(h, binary.LittleEndian, ld.chunks[i].hash) // a hash takes every write
	}
	return h.Sum64(), errors.Join(errs...)
}

// buffer is one thread's memory for loading.
type buffer struct {
	raw []byte
	row []float32
}

func (c *chunk) load(f *gguf.File, b *buffer) error {
	rowBytes := c.t.Type.Bytes(c.t.Shape[0])
	n := (c.to - c.from) * rowBytes
	if cap(b.raw) < n {
		b.raw = make([]byte, n)
	}
	raw := b.raw[:n]
	if err := f.ReadTensor(c.t, raw, int64(c.from)*int64(rowBytes)); err != nil {
		return err
	}
	c.hash = xxhash.Sum64(raw)
	if c.vector != nil {
		gguf.Dequantize(c.t.Type, c.vector, raw)
		return nil
	}
	for r := c.from; r < c.to; r++ {
		b.setRow(c.m, c.t.Type, r, raw[(r-c.from)*rowBytes:][:rowBytes])
	}
	return nil
}

// setRow puts an encoded row into its panel.
func (b *buffer) setRow(m *kernel.Matrix, t gguf.Type, row int, raw []byte) {
	switch {
	case m.Format == kernel.F32:
		m.SetF32(row, b.decode(t, m.K, raw))
	case t == gguf.Q40:
		for i := range m.K / 32 {
			p := raw[i*18:][:18]
			d := binary.LittleEndian.Uint16(p)
			m.SetQ4(row, i, d, f16.Bits(-8*f16.Float(d)), (*[16]byte)(p[2:]))
		}
	case t == gguf.Q41:
		for i := range m.K / 32 {
			p := raw[i*20:][:20]
			m.SetQ4(row, i, binary.LittleEndian.Uint16(p), binary.LittleEndian.Uint16(p[2:]), (*[16]byte)(p[4:]))
		}
	case t == gguf.Q80:
		for i := range m.K / 32 {
			p := raw[i*34:][:34]
			m.SetQ8(row, i, binary.LittleEndian.Uint16(p), (*[32]byte)(p[2:]))
		}
	case t == gguf.Q4K:
		for i := range m.K / 256 {
			setQ4K(m, row, i*8, raw[i*144:][:144])
		}
	default: // Q6_K has a scale per 16 weights: rounded to 8 bits with one per 32
		x := b.decode(t, m.K, raw)
		for i := range m.K / 32 {
			m.QuantizeQ8(row, i, x[i*32:])
		}
	}
}

func (b *buffer) decode(t gguf.Type, n int, raw []byte) []float32 {
	if cap(b.row) < n {
		b.row = make([]float32, n)
	}
	gguf.Dequantize(t, b.row[:n], raw)
	return b.row[:n]
}

// setQ4K splits a block of 256 weights into eight of 32, whose scale and
// minimum are rounded to half precision.
func setQ4K(m *kernel.Matrix, row, block int, p []byte) {
	d, dmin := f16.Float(binary.LittleEndian.Uint16(p)), f16.Float(binary.LittleEndian.Uint16(p[2:]))
	scales, mins := gguf.ScalesQ4K(p)
	for j := range 8 {
		// 32 bytes hold two sub-blocks, one low and one high; a panel wants the
		// first half of a sub-block low and the second high.
		bytes, shift := p[16+j/2*32:][:32], j%2*4
		var q [16]byte
		for i := range q {
			q[i] = bytes[i]>>shift&15 | bytes[i+16]>>shift<<4
		}
		m.SetQ4(row, block+j, f16.Bits(d*float32(scales[j])), f16.Bits(-dmin*float32(mins[j])), &q)
	}
}
