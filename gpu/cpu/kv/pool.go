package kv

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/gpu/cpu/pages"
)

// DType is the element type of stored keys and values.
type DType uint8

// The element types.
const (
	F32 DType = iota
	F16
)

// Size is the bytes of one element.
func (d DType) Size() int {
	if d == F16 {
		return 2
	}
	return 4
}

// Layout is the shape of one block.
type Layout struct {
	Layers, KVHeads, HeadDim, BlockTokens int
	DType                                 DType
}

// PlaneBytes is the bytes of the keys (or of the values) of one page.
func (l Layout) PlaneBytes() int { return l.KVHeads * l.BlockTokens * l.HeadDim * l.DType.Size() }

// PageBytes is the bytes of one block in one layer, keys and values.
func (l Layout) PageBytes() int { return 2 * l.PlaneBytes() }

// BlockBytes is the bytes of one block in all layers.
func (l Layout) BlockBytes() int { return l.Layers * l.PageBytes() }

// Hash identifies the layout: two pools exchange pages only if theirs are equal.
func (l Layout) Hash() uint64 {
	var b [40]byte
	for i, v := range []int{l.Layers, l.KVHeads, l.HeadDim, l.BlockTokens, int(l.DType)} {
		binary.LittleEndian.PutUint64(b[8*i:], uint64(v))
	}
	return xxhash.Sum64(b[:])
}

// BlockID is an index into a pool.
type BlockID int32

// Pool is the memory of a KV cache, layer-major: [layer][block][page]. It does
// no bookkeeping and no locking: who may write which block when is the Cache's
// business.
type Pool struct {
	Layout Layout
	Blocks int
	mem    []byte
}

const (
	// bookkeeping is about what a Cache holds for each block, beside its tokens.
	bookkeeping = 192
	// maxPool is the most memory of a pool where the system does not say how much
	// there is: more than machines have, less than an address space.
	maxPool = 1 << 44
)

// NewPool allocates memory for blocks blocks. It fails when they, and a Cache's
// bookkeeping for them, need more than the machine has free: the memory comes
// when it is touched, and then it is too late for an error.
func NewPool(l Layout, blocks int) (*Pool, error) {
	if blocks <= 0 || l.BlockBytes() <= 0 || l.BlockTokens <= 0 {
		return nil, fmt.Errorf("kv: cannot hold %d blocks of %d bytes", blocks, l.BlockBytes())
	}
	available := pages.Available()
	if available == 0 {
		available = maxPool
	}
	each := int64(l.BlockBytes()) + bookkeeping + int64(l.BlockTokens)*4
	if most := available / each; int64(blocks) > most {
		return nil, fmt.Errorf("kv: %d blocks of %d bytes need %.0f MiB, and %d MiB of memory are available: at most %d blocks",
			blocks, each, float64(blocks)*float64(each)/(1<<20), available>>20, most)
	}
	return &Pool{Layout: l, Blocks: blocks, mem: pages.Alloc(l.BlockBytes() * blocks)}, nil
}

// Page is the memory of block b in layer, K then V. It panics when either is
// out of range.
func (p *Pool) Page(layer int, b BlockID) []byte {
	if uint(layer) >= uint(p.Layout.Layers) || uint(b) >= uint(p.Blocks) {
		panic(fmt.Sprintf("kv: page (%d, %d) outside %d layers, %d blocks", layer, b, p.Layout.Layers, p.Blocks))
	}
	n := p.Layout.PageBytes()
	at := (layer*p.Blocks + int(b)) * n
	return p.mem[at : at+n : at+n]
}

// Pages is the memory of n adjacent blocks from b in layer, one page after the
// other. It panics when any is out of range.
func (p *Pool) Pages(layer int, b BlockID, n int) []byte {
	first, last := p.Page(layer, b), p.Page(layer, b+BlockID(n-1))
	at := (layer*p.Blocks + int(b)) * len(first)
	end := at + (n-1)*len(first) + len(last)
	return p.mem[at:end:end]
}

// PlaneF32 is the keys (v = 0) or values (v = 1) of a page of an F32 pool,
// [kv head][token][head dim].
func (p *Pool) PlaneF32(layer int, b BlockID, v int) []float32 {
	return plane[float32](p, layer, b, v)
}

// PlaneF16 is the same of an F16 pool, as IEEE half-precision bits.
func (p *Pool) PlaneF16(layer int, b BlockID, v int) []uint16 {
	return plane[uint16](p, layer, b, v)
}

func plane[T float32 | uint16](p *Pool, layer int, b BlockID, v int) []T {
	n := p.Layout.PlaneBytes()
	half := p.Page(layer, b)[v*n : v*n+n]
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(half))), n/p.Layout.DType.Size())
}
