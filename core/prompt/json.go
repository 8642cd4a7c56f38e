package prompt

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// A body was checked to be valid JSON before it comes here, so this reader looks
// only for where values begin and end. On bytes that are no JSON it stops early
// or finds nonsense; it never reads outside them.

// span is the half-open range of a value in the body.
type span struct{ from, to int }

func (s span) in(b []byte) []byte { return b[s.from:s.to] }
func (s span) none() bool         { return s.to == 0 }

// members walks an object's members or an array's elements.
type members struct {
	b      []byte
	at     int
	object bool
	key    []byte // unescaped; of an object
	value  span
	broken bool
}

// membersOf walks the object or array at s.
func membersOf(b []byte, s span) members {
	if s.to <= s.from || b[s.from] != '{' && b[s.from] != '[' {
		return members{broken: true}
	}
	return members{b: b[:s.to], at: s.from + 1, object: b[s.from] == '{'}
}

// next goes on to the next one and reports whether there is one.
func (m *members) next() bool {
	if m.broken {
		return false
	}
	m.at = skipSpace(m.b, m.at)
	if m.at < len(m.b) && m.b[m.at] == ',' {
		m.at = skipSpace(m.b, m.at+1)
	}
	if m.at >= len(m.b) || m.b[m.at] == '}' || m.b[m.at] == ']' {
		m.broken = m.at >= len(m.b)
		return false
	}
	if m.object && !m.readKey() {
		m.broken = true
		return false
	}
	end := valueEnd(m.b, m.at)
	m.value = span{m.at, end}
	m.broken = end <= m.at
	m.at = end
	return !m.broken
}

func (m *members) readKey() bool {
	if m.b[m.at] != '"' {
		return false
	}
	end := stringEnd(m.b, m.at)
	if end-m.at < 2 {
		return false
	}
	m.key = m.b[m.at+1 : end-1]
	if bytes.IndexByte(m.key, '\\') >= 0 {
		m.key = appendUnescaped(nil, m.key)
	}
	m.at = skipSpace(m.b, end)
	if m.at >= len(m.b) || m.b[m.at] != ':' {
		return false
	}
	m.at = skipSpace(m.b, m.at+1)
	return m.at < len(m.b)
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// valueEnd is where the value that begins at b[i] ends; i when there is none.
func valueEnd(b []byte, i int) int {
	switch b[i] {
	case '"':
		return stringEnd(b, i)
	case '{', '[':
		return containerEnd(b, i)
	}
	for j := i; j < len(b); j++ {
		switch b[j] {
		case ',', '}', ']', ' ', '\n', '\r', '\t':
			return j
		}
	}
	return len(b)
}

func containerEnd(b []byte, i int) int {
	open := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			i = stringEnd(b, i)
			continue
		case '{', '[':
			open++
		case '}', ']':
			if open--; open == 0 {
				return i + 1
			}
		}
		i++
	}
	return len(b)
}

// stringEnd is the place behind the quote that ends the string beginning at
// b[start].
func stringEnd(b []byte, start int) int {
	for i := start + 1; ; {
		q := bytes.IndexByte(b[i:], '"')
		if q < 0 {
			return len(b)
		}
		end := i + q
		slashes := 0
		for end-slashes-1 > start && b[end-slashes-1] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return end + 1
		}
		i = end + 1
	}
}

// unquoted is the text inside a string's quotes, still escaped; ok is false for
// another value.
func unquoted(b []byte, s span) (text []byte, ok bool) {
	if s.to-s.from < 2 || b[s.from] != '"' || b[s.to-1] != '"' {
		return nil, false
	}
	return b[s.from+1 : s.to-1], true
}

// appendUnescaped appends what the inside of a JSON string means. Half a
// surrogate pair means U+FFFD.
func appendUnescaped(dst, s []byte) []byte {
	for {
		i := bytes.IndexByte(s, '\\')
		if i < 0 || i+1 >= len(s) {
			return append(dst, s...)
		}
		dst = append(dst, s[:i]...)
		c := s[i+1]
		s = s[i+2:]
		switch c {
		case 'n':
			dst = append(dst, '\n')
		case 't':
			dst = append(dst, '\t')
		case 'r':
			dst = append(dst, '\r')
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'u':
			var r rune
			r, s = escapedRune(s)
			dst = utf8.AppendRune(dst, r)
		default: // '"', '\\', '/'
			dst = append(dst, c)
		}
	}
}

// escapedRune reads what follows \u: four digits, and the other half of a
// surrogate pair.
func escapedRune(s []byte) (rune, []byte) {
	r, ok := hex4(s)
	if !ok {
		return utf8.RuneError, s
	}
	s = s[4:]
	if !utf16.IsSurrogate(r) {
		return r, s
	}
	if len(s) >= 6 && s[0] == '\\' && s[1] == 'u' {
		if low, ok := hex4(s[2:]); ok {
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				return pair, s[6:]
			}
		}
	}
	return utf8.RuneError, s
}

func hex4(s []byte) (r rune, ok bool) {
	if len(s) < 4 {
		return 0, false
	}
	for _, c := range s[:4] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// appendCompact appends JSON without the white space between its tokens.
func appendCompact(dst, b []byte) []byte {
	for i := 0; i < len(b); {
		switch b[i] {
		case ' ', '\n', '\r', '\t':
			i++
		case '"':
			end := stringEnd(b, i)
			dst = append(dst, b[i:end]...)
			i = end
		default:
			dst = append(dst, b[i])
			i++
		}
	}
	return dst
}

// view shows b as a string without copying. b must not change while it lives.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
