package tokens

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// splitter gives the length in bytes of the first word of s, which is not
// empty. Each is a hand-written scanner for one regular expression, quoted at
// its function; the tests compare it with the expression itself. All of them
// look at a text of n bytes in O(n): whatever is scanned ahead is at most
// scanned once more.
type splitter func(s string) int

func splitterOf(pre string) splitter {
	switch pre {
	case PreSmolLM:
		return splitSmolLM
	case PreLlama3:
		return func(s string) int { return splitLlama(s, 3) }
	case PreQwen2:
		return func(s string) int { return splitLlama(s, 1) }
	}
	return splitGPT2
}

// class is what the expressions distinguish.
type class uint8

const (
	other class = iota // [^\s\p{L}\p{N}]
	letter
	number
	space
)

var asciiClass = func() (t [utf8.RuneSelf]class) {
	for r := range rune(utf8.RuneSelf) {
		t[r] = slowClass(r)
	}
	return t
}()

func slowClass(r rune) class {
	switch {
	case unicode.IsLetter(r):
		return letter
	case unicode.IsNumber(r):
		return number
	case unicode.IsSpace(r):
		return space
	}
	return other
}

// classAt is the class and width of the first character of s[i:]; an empty rest
// has width 0.
func classAt(s string, i int) (class, int) {
	if i >= len(s) {
		return other, 0
	}
	if c := s[i]; c < utf8.RuneSelf {
		return asciiClass[c], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	if r == utf8.RuneError && n == 1 {
		return other, 1
	}
	return slowClass(r), n
}

// run is the end of the run of characters of class c that starts at i.
func run(s string, i int, c class) int {
	for {
		k, n := classAt(s, i)
		if n == 0 || k != c {
			return i
		}
		i += n
	}
}

// splitGPT2 is
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func splitGPT2(s string) int {
	if n := contraction(s, false); n > 0 {
		return n
	}
	first, width := classAt(s, 0)
	if s[0] == ' ' {
		if c, n := classAt(s, 1); n > 0 && c != space {
			return run(s, 1+n, c)
		}
	}
	if first != space {
		return run(s, width, first)
	}
	return blanks(s, run(s, width, space))
}

// splitSmolLM isolates each \p{N} first and applies splitGPT2 to what is
// between them, whose look-ahead therefore does not see the digit.
func splitSmolLM(s string) int {
	if c, n := classAt(s, 0); c == number {
		return n
	}
	// A word of splitGPT2 crosses into a number only from a single space, and its
	// look-ahead sees one only behind white space.
	n := splitGPT2(s)
	if s[0] == ' ' {
		if c, _ := classAt(s, 1); c == number {
			return 1
		}
	}
	if first, _ := classAt(s, 0); first == space {
		if end := run(s, 0, space); n < end {
			if c, _ := classAt(s, end); c == number {
				return end
			}
		}
	}
	return n
}

// splitLlama is, with digits = 3 for Llama 3 and 1 for Qwen 2,
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}|
//	 ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
func splitLlama(s string, digits int) int {
	if n := contraction(s, true); n > 0 {
		return n
	}
	first, width := classAt(s, 0)
	switch first {
	case letter:
		return run(s, width, letter)
	case number:
		end := width
		for range digits - 1 {
			c, n := classAt(s, end)
			if c != number {
				break
			}
			end += n
		}
		return end
	case other, space:
	}
	next, n := classAt(s, width)
	if next == letter && n > 0 && s[0] != '\r' && s[0] != '\n' {
		return run(s, width+n, letter)
	}
	if first == other {
		return lineEnds(s, run(s, width, other))
	}
	if s[0] == ' ' && next == other && n > 0 {
		return lineEnds(s, run(s, width+n, other))
	}
	end := run(s, width, space)
	if i := strings.LastIndexAny(s[:end], "\r\n"); i >= 0 {
		return i + 1
	}
	return blanks(s, end)
}

// blanks is \s+(?!\S)|\s+ on a run of white space s[:end]: all of it at the end
// of the text, else all but its last character, unless it has only one.
func blanks(s string, end int) int {
	if end == len(s) {
		return end
	}
	if _, n := utf8.DecodeLastRuneInString(s[:end]); n < end {
		return end - n
	}
	return end
}

func lineEnds(s string, i int) int {
	for i < len(s) && (s[i] == '\r' || s[i] == '\n') {
		i++
	}
	return i
}

// contraction is the length of 's, 't, 're, 've, 'm, 'll or 'd at the front of
// s, or 0. Folding counts capitals too, and the long s, as Unicode-aware
// case-insensitive matching does.
func contraction(s string, fold bool) int {
	if len(s) < 2 || s[0] != '\'' {
		return 0
	}
	if fold && strings.HasPrefix(s[1:], "ſ") {
		return 1 + len("ſ")
	}
	a, b := s[1], byte(0)
	if len(s) > 2 {
		b = s[2]
	}
	if fold {
		a, b = lower(a), lower(b)
	}
	switch a {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if b == 'e' {
			return 3
		}
	case 'l':
		if b == 'l' {
			return 3
		}
	}
	return 0
}

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}
