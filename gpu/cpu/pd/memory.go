package pd

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/gpu/cpu/kv"
	"github.com/yardmaster/yardmaster/gpu/transfer"
)

// Memory is a pool as the transfer layer sees it.
type Memory struct {
	pool  *kv.Pool
	cache *kv.Cache
	shape transfer.Shape
}

// NewMemory makes pool, whose blocks cache accounts for, known to the transfer
// layer. dim is the width of the model's hidden state. compat names the model
// ([fleet.Worker.Compat]): pages are exchanged only between memories of equal
// layout and compat.
func NewMemory(pool *kv.Pool, cache *kv.Cache, dim int, compat string) *Memory {
	var layout [8]byte
	binary.LittleEndian.PutUint64(layout[:], pool.Layout.Hash())
	hash := xxhash.New()
	_, _ = hash.Write(layout[:])    // never fails
	_, _ = hash.WriteString(compat) // never fails
	return &Memory{pool: pool, cache: cache, shape: transfer.Shape{
		Layers: pool.Layout.Layers, Blocks: pool.Blocks, BlockTokens: pool.Layout.BlockTokens,
		PageBytes: pool.Layout.PageBytes(), Hidden: dim, Hash: hash.Sum64(),
	}}
}

// Shape implements [transfer.Memory].
func (m *Memory) Shape() transfer.Shape { return m.shape }

// Run implements [transfer.Memory].
func (m *Memory) Run(layer int, block int32, n int) []byte {
	return m.pool.Pages(layer, kv.BlockID(block), n)
}

// Generation implements [transfer.Memory].
func (m *Memory) Generation(block int32) uint32 { return m.cache.Generation(kv.BlockID(block)) }
