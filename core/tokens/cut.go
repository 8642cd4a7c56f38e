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
	spaces bool      // before a space that follows something else
	behind *specials // special tokens behind which to cut, spelled backwards
}

// Limits of the special tokens behind which texts are cut.
const (
	maxCutText  = 64   // bytes of one
	maxSpecials = 1024 // they are compared with one another
)

// newCutter finds out which cuts are safe whatever the text.
//
// Before a space whose predecessor is no white space: none of the four
// pre-tokenizers has a word that holds white space behind another character
// (but for line breaks), so a word ends there, and no word before it is decided
// by what comes behind the space. NFC composes nothing across an ASCII
// character from its left. So only a special token can lie across such a place,
// and a vocabulary with one that does is not cut there.
//
// Behind a special token S, if no other special token contains S, and none
// overlaps its beginning: then S is found wherever it stands, and nothing longer
// in its place.
func newCutter(special []string) *cutter {
	c := &cutter{spaces: true, behind: newSpecials()}
	for _, s := range special {
		for i := 1; i < len(s); i++ {
			if s[i] == ' ' && !spaceBefore(s, i) {
				c.spaces = false
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
// shows in the [MaxCutLook] bytes before it and the one behind, and the ids
// before it do not depend on what follows.
func (t *Tokenizer) Cut(text string, from int) int {
	c := t.cuts
	for i := max(from, 1); i < len(text); i++ {
		if text[i] == ' ' && c.spaces && !spaceBefore(text, i) {
			return i
		}
		if c.behind.first[text[i-1]] && c.behind.ends(text[:i]) {
			return i
		}
	}
	return len(text)
}

// MaxCutLook is how many bytes before a place [Tokenizer.Cut] looks at.
const MaxCutLook = maxCutText

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
