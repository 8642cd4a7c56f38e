package kv

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// Hash names a full block by its tokens and all tokens before it. It finds a
// candidate; only equal token ids and an equal parent make a hit.
type Hash uint64

// Root is the parent hash of a sequence's first block: xxHash64 of the seed
// (8 bytes, little endian) and the salt. Sequences of different salts share no
// hash.
func Root(seed uint64, salt string) Hash {
	var d xxhash.Digest
	d.Reset()
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], seed)
	_, _ = d.Write(b[:]) // never fails
	_, _ = d.WriteString(salt)
	return Hash(d.Sum64())
}

// Next is the hash of the block with these tokens whose predecessor's hash is
// parent: xxHash64 of the parent (8 bytes) and the token ids (4 bytes each),
// little endian.
func Next(parent Hash, tokens []int32) Hash {
	var stack [8 + 4*64]byte // blocks of up to 64 tokens cost no allocation
	b := binary.LittleEndian.AppendUint64(stack[:0], uint64(parent))
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, uint32(t))
	}
	return Hash(xxhash.Sum64(b))
}

// Chain appends to dst the hashes of the full blocks of tokens.
func Chain(dst []Hash, root Hash, tokens []int32, blockTokens int) []Hash {
	for len(tokens) >= blockTokens {
		root = Next(root, tokens[:blockTokens])
		dst = append(dst, root)
		tokens = tokens[blockTokens:]
	}
	return dst
}
