package tokens

import (
	"strconv"
	"unicode/utf8"
)

// The GPT-2 alphabet writes each byte as one printable character: those that
// are printable in Latin-1 as themselves, the other 68 as U+0100 and up.
// byteRune and runeByte are the two directions.
var byteRune, runeByte = alphabet()

const lastAlphabetRune = 0x143

func alphabet() (to [256]rune, from [lastAlphabetRune + 1]int16) {
	for r := range from {
		from[r] = -1
	}
	next := rune(0x100)
	for b := range 256 {
		r := rune(b)
		printable := b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae
		if !printable {
			r = next
			next++
		}
		to[b] = r
		from[r] = int16(b)
	}
	return to, from
}

// appendPiece appends the bytes that a token stands for.
func appendPiece(dst []byte, text string, kind Kind) []byte {
	switch kind {
	case Normal, Unused:
		for i, r := range text {
			switch {
			case r == utf8.RuneError:
				_, n := utf8.DecodeRuneInString(text[i:])
				dst = append(dst, text[i:i+n]...)
			case r <= lastAlphabetRune && runeByte[r] >= 0:
				dst = append(dst, byte(runeByte[r]))
			default: // not of the alphabet: some vocabularies hold plain text
				dst = utf8.AppendRune(dst, r)
			}
		}
		return dst
	case Byte:
		if len(text) == len("<0x00>") && text[:3] == "<0x" {
			if b, err := strconv.ParseUint(text[3:5], 16, 8); err == nil {
				return append(dst, byte(b))
			}
		}
	case Unknown, Control, UserDefined:
	}
	return append(dst, text...)
}
