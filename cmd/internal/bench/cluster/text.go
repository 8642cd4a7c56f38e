package cluster

import (
	"math/rand/v2"
	"strings"

	"github.com/yardmaster/yardmaster/core/sim/trace"
	"github.com/yardmaster/yardmaster/core/unit"
)

// piece is text of so many tokens that the key determines: another key makes
// another text, a shorter piece is a prefix of a longer one.
func piece(kind, key uint64, tokens int) string {
	const letters = "abcdefghijklmnopqrstuvwxyz012345" // 32 of them: five bits each
	rng := rand.NewPCG(kind, key)
	text := make([]byte, 0, tokens*tokenBytes)
	for len(text) < tokens*tokenBytes {
		bits := rng.Uint64()
		for range min(12, tokens*tokenBytes-len(text)) {
			text = append(text, letters[bits%32])
			bits >>= 5
		}
	}
	return string(text)
}

// The kinds of text, so that equal keys of two kinds differ.
const (
	kindTrace = iota + 1
	kindGroup
	kindOwn
	kindShort
)

// traceText is the prompt of a row: equal ids give equal text.
func traceText(row *trace.Request) string {
	var b strings.Builder
	left := row.Input
	for _, id := range row.Blocks {
		b.WriteString(piece(kindTrace, id, int(min(left, trace.BlockTokens))))
		left = max(left-trace.BlockTokens, unit.Tokens(0))
	}
	return b.String()
}
