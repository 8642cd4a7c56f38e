package fake

import (
	"sync/atomic"

	"github.com/yardmaster/yardmaster/gpu/transfer"
)

// Memory is a [transfer.Memory] of plain bytes.
type Memory struct {
	shape       transfer.Shape
	bytes       []byte // [layer][block][page]
	generations []atomic.Uint32
}

// NewMemory makes memory of that shape, all zero, all generations 1.
func NewMemory(s transfer.Shape) *Memory {
	m := &Memory{shape: s, bytes: make([]byte, s.Layers*s.Blocks*s.PageBytes), generations: make([]atomic.Uint32, s.Blocks)}
	for b := range m.generations {
		m.generations[b].Store(1)
	}
	return m
}

// Shape implements transfer.Memory.
func (m *Memory) Shape() transfer.Shape { return m.shape }

// Run implements transfer.Memory.
func (m *Memory) Run(layer int, block int32, n int) []byte {
	at := (layer*m.shape.Blocks + int(block)) * m.shape.PageBytes
	end := at + n*m.shape.PageBytes
	return m.bytes[at:end:end]
}

// Generation implements transfer.Memory.
func (m *Memory) Generation(block int32) uint32 { return m.generations[block].Load() }

// Allot begins a new use of block.
func (m *Memory) Allot(block int32) transfer.Ref {
	return transfer.Ref{Block: block, Generation: m.generations[block].Add(1)}
}
