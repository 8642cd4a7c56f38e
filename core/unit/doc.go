// Package unit names the quantities that are easy to confuse: tokens, KV
// blocks and bytes. A function that takes two of them cannot be called with
// the two swapped.
package unit

// Tokens counts model tokens.
type Tokens int

// Blocks counts KV blocks. How many tokens a block holds is a property of the
// engine's layout, never of this type.
type Blocks int

// Bytes counts bytes.
type Bytes int64

// BlocksFor is the number of blocks of blockTokens tokens each that hold t
// tokens, the last one perhaps partly. It is 0 when t or blockTokens is not
// positive.
func BlocksFor(t, blockTokens Tokens) Blocks {
	if t <= 0 || blockTokens <= 0 {
		return 0
	}
	return Blocks((t + blockTokens - 1) / blockTokens)
}
