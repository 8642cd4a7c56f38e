package tokens

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// cutter knows where a text may be cut so that its parts are encoded apart and
// the ids, one after the other, are those of the whole.
type cutter struct {
	spaces bool                // before a space that follows something else
	after  [utf8.RuneSelf]bool // before these ASCII characters behind a letter
	wide   bool                // before full-width punctuation behind a letter
	behind *specials           // special tokens behind which to cut, spelled backwards
}

// Limits of the special tokens behind which texts are cut.
const (
	maxCutText  = 64   // bytes of one
	maxSpecials = 1024 // they are compared with one another
)

// newCutter finds out which cuts are safe whatever the text.
//
// Before a space whose predecessor is no white space, and between a letter and
// what is none: none of the four pre-tokenizers has a word that goes on there,
// so one ends, and what comes behind is split as if it began there. NFC composes
// nothing across such a place, given that the letter is one that stays a letter
// by itself (of ASCII or CJK) and the other character stands alone. So only a
// special token can lie across, and where one of the vocabulary does, no text is
// cut.
//
// Behind a special token S, if no other special token contains S, and none
// overlaps its beginning: then S is found wherever it stands, and nothing longer
// in its place.
func newCutter(special []string) *cutter {
	c := &cutter{spaces: true, wide: true, behind: newSpecials()}
	for b := range c.after {
		c.after[b] = asciiClass[b] != letter
	}
	for _, s := range special {
		for i := 1; i < len(s); i++ {
			switch {
			case s[i] == ' ' && !spaceBefore(s, i):
				c.spaces, c.after[' '] = false, false
			case s[i] < utf8.RuneSelf && letterBefore(s, i):
				c.after[s[i]] = false
			case isWide(s[i:]):
				c.wide = false
			}
		}
	}
	if len(special) > maxSpecials {
		return c
	}
	for _, s := range special {
		if s != "" && len(s) <= maxCutText && standsAlone(s, special) {
			backwards := []byte(s)
			slices.Reverse(backwards)
			c.behind.add(string(backwards), 0)
		}
	}
	return c
}

// letterBefore reports whether the character before s[i] is a letter of ASCII or
// CJK.
func letterBefore(s string, i int) bool {
	if c := s[i-1]; c < utf8.RuneSelf {
		return asciiClass[c] == letter
	}
	r, _ := utf8.DecodeLastRuneInString(s[:i])
	// Kana from U+3041, ideographs, and no syllable blocks, which are composed.
	return r >= 0x3041 && r <= 0x9FFF && unicode.IsLetter(r)
}

// isWide reports whether s begins with a comma, a full stop or the like as CJK
// text has them.
func isWide(s string) bool {
	if len(s) < 3 || s[0] != 0xE3 && s[0] != 0xEF {
		return false
	}
	r, _ := utf8.DecodeRuneInString(s)
	switch r {
	case '、', '。', '，', '！', '？', '：', '；':
		return true
	}
	return false
}

func standsAlone(s string, special []string) bool {
	for _, t := range special {
		if t != s && strings.Contains(t, s) {
			return false
		}
		for n := 1; n < min(len(s), len(t)); n++ {
			if t[len(t)-n:] == s[:n] {
				return false
			}
		}
	}
	return true
}

// spaceBefore reports whether the character before s[i] is white space.
func spaceBefore(s string, i int) bool {
	if c := s[i-1]; c < utf8.RuneSelf {
		return asciiClass[c] == space
	}
	r, _ := utf8.DecodeLastRuneInString(s[:i])
	return unicode.IsSpace(r)
}

// Cut is the first place at or behind from where text can be cut: with
// parseSpecial, the ids of text are those of text[:cut] and then those of
// text[cut:]. It is len(text) when there is none before. Whether a place is one
// shows in a few bytes on either side of it, so that texts which begin alike are
// cut alike.
func (t *Tokenizer) Cut(text string, from int) int {
	for i := max(from, 1); i < len(text); i++ {
		if t.cuts.at(text, i) {
			return i
		}
	}
	return len(text)
}

func (c *cutter) at(text string, i int) bool {
	switch b := text[i]; {
	case b == ' ' && c.spaces && !spaceBefore(text, i):
		return true
	case b < utf8.RuneSelf:
		if c.after[b] && letterBefore(text, i) {
			return true
		}
	case c.wide && isWide(text[i:]) && letterBefore(text, i):
		return true
	}
	return c.behind.first[text[i-1]] && c.behind.ends(text[:i])
}

// ends reports whether text ends with one of the tokens, which are spelled
// backwards.
func (s *specials) ends(text string) bool {
	at := int32(0)
	for i := len(text) - 1; i >= 0; i-- {
		next, ok := s.nodes[at].edges[text[i]]
		if !ok {
			return false
		}
		if at = next; s.nodes[at].id != None {
			return true
		}
	}
	return false
}
