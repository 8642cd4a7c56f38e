package prompt

import (
	"encoding/binary"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/unit"
)

// chainer links tokens, as they come, into block hashes.
type chainer struct {
	parent prefix.Hash
	block  int
	rest   []int32 // tokens since the last whole block
	out    []prefix.Hash
	tokens int
}

func (c *chainer) begin(seed prefix.Hash, block unit.Tokens) {
	c.parent, c.block, c.tokens = seed, int(block), 0
	c.rest, c.out = c.rest[:0], c.out[:0]
}

// add goes on with ids.
func (c *chainer) add(ids []int32) {
	c.tokens += len(ids)
	if len(c.rest) > 0 {
		n := min(c.block-len(c.rest), len(ids))
		c.rest = append(c.rest, ids[:n]...)
		ids = ids[n:]
		if len(c.rest) < c.block {
			return
		}
		c.link(c.rest)
		c.rest = c.rest[:0]
	}
	whole := len(ids) - len(ids)%c.block
	c.link(ids[:whole])
	c.rest = append(c.rest, ids[whole:]...)
}

func (c *chainer) link(ids []int32) {
	before := len(c.out)
	c.out = prefix.AppendChain(c.out, c.parent, ids, unit.Tokens(c.block))
	if len(c.out) > before {
		c.parent = c.out[len(c.out)-1]
	}
}

// hashes are what a piece's tokens once added to a chain, and where in which
// chain that was. It is immutable.
type hashes struct {
	parent prefix.Hash
	block  int
	rest   []int32
	out    []prefix.Hash
}

// addPiece goes on with a piece's ids, by the hashes it remembers if they belong
// here.
func (c *chainer) addPiece(p *piece) {
	if h := p.hashes.Load(); h != nil && h.parent == c.parent && h.block == c.block && slices.Equal(h.rest, c.rest) {
		c.tokens += len(p.ids)
		all := len(c.rest) + len(p.ids)
		switch left := all % c.block; {
		case all < c.block:
			c.rest = append(c.rest, p.ids...)
		default:
			// A whole block was linked, so what is left is of this piece alone.
			c.rest = append(c.rest[:0], p.ids[len(p.ids)-left:]...)
		}
		if len(h.out) > 0 {
			c.out = append(c.out, h.out...)
			c.parent = h.out[len(h.out)-1]
		}
		return
	}
	parent, rest, before := c.parent, len(c.rest), len(c.out)
	if !p.remembers() {
		c.add(p.ids)
		return
	}
	h := &hashes{parent: parent, block: c.block, rest: append(make([]int32, 0, rest), c.rest...)}
	c.add(p.ids)
	h.out = append(make([]prefix.Hash, 0, len(c.out)-before), c.out[before:]...)
	p.hashes.Store(h)
}

const (
	// byteBlock is the bytes of a block where tokens are not known: 16 tokens of
	// the usual 4.
	byteBlock = 64
	// byteSeed keeps chains of bytes and chains of tokens apart.
	byteSeed prefix.Hash = 0x62797465735f7631
)

// appendByteChain appends the hashes of the whole blocks of b. They are what
// [prefix.AppendChain] gives for its bytes as little-endian ids.
func appendByteChain(dst []prefix.Hash, parent prefix.Hash, b []byte) []prefix.Hash {
	var buf [8 + byteBlock]byte
	for ; len(b) >= byteBlock; b = b[byteBlock:] {
		binary.LittleEndian.PutUint64(buf[:], uint64(parent))
		copy(buf[8:], b)
		parent = prefix.Hash(xxhash.Sum64(buf[:]))
		dst = append(dst, parent)
	}
	return dst
}
