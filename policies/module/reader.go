package module

import (
	"fmt"
	"strconv"
	"unicode/utf8"
)

// A reader takes values off the bytes up to end. The first failure stays and
// makes it read zeros from there on, so that callers check once per item.
type reader struct {
	b    []byte
	pos  int
	end  int
	fn   int // the function that is being read, or -1
	err  *Error
	what string // what is being read, for sentences
}

// fail keeps the first failure.
func (r *reader) fail(kind error, at int, reason string) {
	if r.err == nil {
		r.err = &Error{Err: kind, Offset: at, Func: r.fn, Reason: reason}
	}
	r.pos = r.end
}

func (r *reader) failf(kind error, at int, format string, args ...any) {
	if r.err == nil {
		r.fail(kind, at, fmt.Sprintf(format, args...))
	}
	r.pos = r.end
}

func (r *reader) left() int { return r.end - r.pos }

func (r *reader) short() {
	r.fail(ErrMalformed, r.pos, "the "+r.what+" ends in the middle of a value; the upload may be cut off or damaged")
}

func (r *reader) byte() byte {
	if r.pos >= r.end {
		r.short()
		return 0
	}
	c := r.b[r.pos]
	r.pos++
	return c
}

// bytes returns the next n bytes without copying them.
func (r *reader) bytes(n int) []byte {
	if n > r.left() {
		r.short()
		return nil
	}
	p := r.b[r.pos : r.pos+n : r.pos+n]
	r.pos += n
	return p
}

// u32 reads an unsigned LEB128 number of 32 bits.
func (r *reader) u32() uint32 {
	if r.pos < r.end && r.b[r.pos] < 0x80 {
		v := r.b[r.pos]
		r.pos++
		return uint32(v)
	}
	start := r.pos
	var v uint32
	for shift := 0; ; shift += 7 {
		c := r.byte()
		if shift == 28 && c > 0x0f {
			r.tooWide(start, 32)
			return 0
		}
		v |= uint32(c&0x7f) << shift
		if c < 0x80 {
			return v
		}
	}
}

// signed reads a signed LEB128 number of the given number of bits: 32, 33 or 64.
func (r *reader) signed(bits int) int64 {
	start := r.pos
	var v int64
	for shift := 0; ; shift += 7 {
		c := r.byte()
		if left := bits - shift; left <= 7 {
			// In the last byte the bits beyond the number repeat its sign, and
			// nothing follows.
			beyond := int8(c<<1) >> left
			if c >= 0x80 || beyond != 0 && beyond != -1 {
				r.tooWide(start, bits)
				return 0
			}
		}
		v |= int64(c&0x7f) << shift
		if c < 0x80 {
			if shift+7 < 64 && c&0x40 != 0 {
				v |= -1 << (shift + 7)
			}
			return v
		}
	}
}

func (r *reader) tooWide(at, bits int) {
	r.fail(ErrMalformed, at, "a number does not fit into "+strconv.Itoa(bits)+" bits")
}

// count reads how many items follow, at most limit and each of at least size
// bytes: a claim that the rest of the input could not fulfil is refused before
// anything is allocated for it.
func (r *reader) count(what string, limit, size int) int {
	at := r.pos
	n := int(r.u32())
	switch {
	case n > limit:
		r.failf(ErrLimit, at, "%d %s are more than the %d that a policy may have", n, what, limit)
	case n > r.left()/size:
		r.failf(ErrMalformed, at, "%d %s are announced, but the %s has only %d bytes left; the upload may be cut off", n, what, r.what, r.left())
	default:
		return n
	}
	return 0
}

// name reads a string of at most limit bytes.
func (r *reader) name(what string, limit int) string {
	at := r.pos
	n := int(r.u32())
	if n > limit {
		r.failf(ErrLimit, at, "the %s has %d bytes; at most %d are allowed", what, n, limit)
		return ""
	}
	p := r.bytes(n)
	if !utf8.Valid(p) {
		r.failf(ErrMalformed, at, "the %s is not valid UTF-8: %.40q", what, p)
		return ""
	}
	return string(p)
}
