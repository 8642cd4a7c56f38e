package edge

import (
	"bytes"
	"unsafe"
)

// depth is the deepest nesting of arrays and objects in body, or limit+1 as
// soon as it is deeper than limit. It looks at brackets outside strings only
// and does not check the syntax. It runs before the recursive validation.
func depth(body []byte, limit int) int {
	open, deepest := 0, 0
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '"':
			i = stringEnd(body, i)
		case '{', '[':
			open++
			if deepest = max(deepest, open); deepest > limit {
				return deepest
			}
		case '}', ']':
			open--
		}
	}
	return deepest
}

// stringEnd is the index of the quote that ends the string beginning at quote
// start, or len(body).
func stringEnd(body []byte, start int) int {
	for i := start + 1; ; {
		q := bytes.IndexByte(body[i:], '"')
		if q < 0 {
			return len(body)
		}
		end := i + q
		slashes := 0
		for end-slashes-1 > start && body[end-slashes-1] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return end
		}
		i = end + 1
	}
}

// text views b as a string without copying. b must not change while it lives.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
