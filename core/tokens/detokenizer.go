package tokens

import "unicode/utf8"

// Detokenizer turns a stream of ids into text that is whole at every point: the
// bytes of an incomplete character are held back until the rest comes. The
// concatenation of what it returns does not depend on where the stream was cut.
// It is not safe for concurrent use.
type Detokenizer struct {
	tokens      *Tokenizer
	keepSpecial bool
	pending     []byte // an incomplete character
	out         []byte
}

// NewDetokenizer returns one at the start of a text. Control tokens give no
// text unless keepSpecial is set.
func NewDetokenizer(t *Tokenizer, keepSpecial bool) *Detokenizer {
	return &Detokenizer{tokens: t, keepSpecial: keepSpecial}
}

// Add takes the next id and returns the text that is now complete, which may be
// empty. The slice is valid until the next call. Bytes that can never become a
// character are U+FFFD, one for each maximal broken sequence.
func (d *Detokenizer) Add(id int32) []byte {
	if !d.keepSpecial && d.tokens.IsSpecial(id) {
		return nil
	}
	d.pending = append(d.pending, d.tokens.Piece(id)...)
	var rest []byte
	d.out, rest = appendWhole(d.out[:0], d.pending)
	d.pending = append(d.pending[:0], rest...)
	return d.out
}

// Flush returns what was held back: U+FFFD if a character was left incomplete.
func (d *Detokenizer) Flush() []byte {
	if len(d.pending) == 0 {
		return nil
	}
	d.pending = d.pending[:0]
	d.out = utf8.AppendRune(d.out[:0], utf8.RuneError)
	return d.out
}

// Pending says whether part of a character is held back.
func (d *Detokenizer) Pending() bool { return len(d.pending) > 0 }

// appendWhole appends b to dst up to an incomplete character at its end, which
// it returns. Broken sequences become U+FFFD.
func appendWhole(dst, b []byte) (text, rest []byte) {
	for len(b) > 0 {
		if b[0] < utf8.RuneSelf {
			dst = append(dst, b[0])
			b = b[1:]
			continue
		}
		if !utf8.FullRune(b) {
			return dst, b
		}
		if r, n := utf8.DecodeRune(b); r != utf8.RuneError || n > 1 {
			dst = append(dst, b[:n]...)
			b = b[n:]
			continue
		}
		dst = utf8.AppendRune(dst, utf8.RuneError)
		b = b[broken(b):]
	}
	return dst, nil
}

// broken is the length of the maximal subpart of an ill-formed sequence at the
// start of b (Unicode, section 3.9): the longest beginning of it that could
// have begun a character, or one byte.
func broken(b []byte) int {
	n := 1
	for n < len(b) && n < utf8.UTFMax && !utf8.FullRune(b[:n+1]) {
		n++
	}
	if n == 1 || utf8.FullRune(b[:n]) {
		return 1
	}
	return n
}
