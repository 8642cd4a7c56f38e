package scripted

import (
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/core/mix"
)

// tokenBytes is how much text a token holds.
const tokenBytes = 4

// tailMark in the top byte of an id says that the token holds fewer than
// tokenBytes bytes: tailMark+1 to tailMark+3. No UTF-8 text contains such a
// byte, so ids and texts map one to one.
const tailMark = 0xF8

// Tokens is the number of tokens of text: one for every four bytes, and one for
// a shorter rest.
func Tokens(text string) int { return (len(text) + tokenBytes - 1) / tokenBytes }

// Tokenize is the scripted engine's tokenizer. A token is four bytes of text;
// its id is those bytes, little-endian. The last token may hold one to three
// bytes, marked by 0xF9 to 0xFB in the id's top byte. Texts with a common prefix
// of 4·n bytes share n tokens.
func Tokenize(text string) []uint32 {
	ids := make([]uint32, 0, Tokens(text))
	for len(text) >= tokenBytes {
		ids = append(ids, uint32(text[0])|uint32(text[1])<<8|uint32(text[2])<<16|uint32(text[3])<<24)
		text = text[tokenBytes:]
	}
	if len(text) == 0 {
		return ids
	}
	id := uint32(tailMark+len(text)) << 24
	for i := range len(text) {
		id |= uint32(text[i]) << (8 * i)
	}
	return append(ids, id)
}

// Detokenize is the inverse of Tokenize for the ids it makes; any other id
// becomes its four bytes.
func Detokenize(ids []uint32) string {
	var b strings.Builder
	b.Grow(tokenBytes * len(ids))
	for _, id := range ids {
		n := tokenBytes
		if top := int(id>>24) - tailMark; top >= 1 && top < tokenBytes {
			n = top
		}
		for i := range n {
			b.WriteByte(byte(id >> (8 * i)))
		}
	}
	return b.String()
}

// message is one turn of a chat.
type message struct{ role, content string }

// endOfTurn closes a message in the rendered prompt.
const endOfTurn = "<|/>"

// render is the chat template. Every part is padded to whole tokens, so that a
// conversation's next turn begins with exactly the tokens of the turn before,
// answer included. With open set the last message is left open: the engine
// continues it.
func render(messages []message, open bool) string {
	var b strings.Builder
	for i, m := range messages {
		writePadded(&b, "<|"+m.role+"|>")
		if open && i == len(messages)-1 {
			b.WriteString(m.content)
			return b.String()
		}
		writePadded(&b, m.content)
		b.WriteString(endOfTurn)
	}
	writePadded(&b, "<|assistant|>")
	return b.String()
}

func writePadded(b *strings.Builder, s string) {
	b.WriteString(s)
	for range (tokenBytes - len(s)%tokenBytes) % tokenBytes {
		b.WriteByte('\n')
	}
}

// generator makes up text. A token depends on all the text before it, prompt
// and output alike, and on nothing else: a request that moves to another engine
// with what was generated so far goes on as it would have.
type generator struct {
	hash *xxhash.Digest
	seed uint64
}

// newGenerator continues prompt. seed tells choices and sampling seeds apart; 0
// is what greedy decoding gives.
func newGenerator(prompt string, seed uint64) *generator {
	g := &generator{hash: xxhash.New(), seed: seed}
	g.absorb(prompt)
	return g
}

// absorb takes text as generated.
func (g *generator) absorb(text string) {
	_, _ = g.hash.WriteString(text) // a hash never fails
}

// next is the following token's text, a space and a syllable: one token.
func (g *generator) next() string {
	const consonants, vowels = "bdfghjklmnprstvz", "aeiou"
	h := mix.Bits(g.hash.Sum64() ^ g.seed)
	text := string([]byte{
		' ', consonants[h%16], vowels[h>>8%64%5], consonants[h>>16%16],
	})
	g.absorb(text)
	return text
}

// ends reports whether the model, giving one answer in every so many tokens,
// would end the text here.
func (g *generator) ends(every int) bool {
	return every > 0 && mix.Bits(g.hash.Sum64()^g.seed^mix.Gamma)%uint64(every) == 0
}
