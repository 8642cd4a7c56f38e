package prefix

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/core/unit"
)

// Hash names a block by everything up to its end: domain seed, tenant salt and
// all token ids of the prefix.
type Hash uint64

// Domain seeds the chains of one hash domain (model and adapter) and one tenant
// salt, so that equal tokens of different domains or tenants never meet. An
// empty salt is no salt.
func Domain(domain, salt string) Hash {
	var d xxhash.Digest
	d.Reset()
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(domain)))
	_, _ = d.Write(n[:])
	_, _ = d.WriteString(domain)
	_, _ = d.WriteString(salt)
	return Hash(d.Sum64())
}

// AppendChain appends the hashes of the whole blocks of tokens to dst: hash i
// covers tokens [0, (i+1)·blockTokens). A partial last block has no hash. The
// chain goes on from parent, which is a [Domain] for a prompt's start. A link
// is xxhash64 of the parent and the block's ids, little-endian, 8 and 4 bytes
// each; a block of more than 512 tokens is linked in pieces of 512.
func AppendChain(dst []Hash, parent Hash, tokens []int32, blockTokens unit.Tokens) []Hash {
	if blockTokens <= 0 {
		return dst
	}
	var buf [8 + 4*maxPiece]byte
	for n := int(blockTokens); len(tokens) >= n; tokens = tokens[n:] {
		parent = link(parent, tokens[:n], &buf)
		dst = append(dst, parent)
	}
	return dst
}

const maxPiece = 512

func link(parent Hash, block []int32, buf *[8 + 4*maxPiece]byte) Hash {
	for len(block) > 0 {
		piece := block[:min(len(block), maxPiece)]
		binary.LittleEndian.PutUint64(buf[:], uint64(parent))
		for i, t := range piece {
			binary.LittleEndian.PutUint32(buf[8+4*i:], uint32(t))
		}
		parent = Hash(xxhash.Sum64(buf[:8+4*len(piece)]))
		block = block[len(piece):]
	}
	return parent
}
