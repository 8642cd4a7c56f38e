package transfer

import (
	"crypto/sha256"
	"encoding/binary"
)

// Shape is the form of a worker's KV memory.
type Shape struct {
	Layers      int
	Blocks      int // in the pool
	BlockTokens int
	PageBytes   int // of one block in one layer
	Hidden      int // width of the hidden state that goes with the last position
	// Hash identifies layout and model: pages are exchanged only between
	// memories of equal Hash.
	Hash uint64
}

// Memory is a worker's paged KV memory. Its methods are safe for concurrent use.
type Memory interface {
	Shape() Shape
	// Run is the memory of n adjacent blocks from block, in layer.
	Run(layer int, block int32, n int) []byte
	// Generation is how often block has been allotted. It changes before a new
	// holder may use the block.
	Generation(block int32) uint32
}

// Ref names one use of a block.
type Ref struct {
	Block      int32
	Generation uint32
}

// Digest identifies a prompt: the first half of the SHA-256 of its token ids as
// little-endian 32-bit integers.
type Digest [16]byte

// DigestOf is the digest of prompt.
func DigestOf(prompt []int32) Digest {
	hash := sha256.New()
	var chunk [1024]byte
	for len(prompt) > 0 {
		n := min(len(prompt), len(chunk)/4)
		for i, id := range prompt[:n] {
			binary.LittleEndian.PutUint32(chunk[4*i:], uint32(id))
		}
		hash.Write(chunk[:4*n])
		prompt = prompt[n:]
	}
	var sum [sha256.Size]byte
	return Digest(hash.Sum(sum[:0])[:len(Digest{})])
}

// bits is a set of small integers.
type bits []uint64

func newBits(n int) bits { return make(bits, (n+63)/64) }

// add puts i in and reports whether it was new.
func (b bits) add(i int) bool {
	word, mask := &b[i/64], uint64(1)<<(i%64)
	fresh := *word&mask == 0
	*word |= mask
	return fresh
}
