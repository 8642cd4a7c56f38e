package eventstream

import (
	"bytes"
	"errors"
	"io"
)

// ErrTooLong means that an event is longer than the reader's limit.
var ErrTooLong = errors.New("event is longer than the limit")

// Reader reads events from a byte stream. It is used by one goroutine:
//
//	for {
//		err := r.Fill()
//		for e, ok := r.Next(); ok; e, ok = r.Next() { … }
//		if err != nil { … }
//	}
type Reader struct {
	// Grow, if not nil, is asked before the buffer becomes longer by n bytes. Its
	// error is Fill's, and the buffer stays as it is.
	Grow func(n int) error

	buf     []byte
	passed  int // first byte not returned by Passed
	start   int // first byte not handed out
	end     int // end of the bytes read
	max     int
	split   splitter
	scratch []byte
	begun   bool // an event was handed out: no byte order mark any more
}

// NewReader reads into buf, whose memory it owns until Buffer gives it back,
// and grows it when an event does not fit, up to maxEvent bytes.
func NewReader(buf []byte, maxEvent int) *Reader {
	r := &Reader{}
	r.Reset(buf, maxEvent)
	return r
}

// Reset makes r read a new stream, as NewReader does.
func (r *Reader) Reset(buf []byte, maxEvent int) {
	*r = Reader{Grow: r.Grow, buf: buf[:cap(buf)], max: maxEvent, scratch: r.scratch[:0]}
}

// Fill reads once from src. Call it when Next has no more events: it moves the
// unfinished rest to the front of the buffer, which ends the life of the events
// handed out before. It returns src's error, io.EOF included, ErrTooLong, or Grow's.
// Bytes that came along with an error are in Next and Rest all the same.
func (r *Reader) Fill(src io.Reader) error {
	if r.start > 0 {
		r.end = copy(r.buf, r.buf[r.start:r.end])
		r.start, r.passed = 0, 0
	}
	if r.end == len(r.buf) {
		if r.end >= r.max {
			return ErrTooLong
		}
		size := min(max(2*len(r.buf), 512), r.max)
		if r.Grow != nil {
			if err := r.Grow(size - len(r.buf)); err != nil {
				return err
			}
		}
		grown := make([]byte, size)
		copy(grown, r.buf)
		r.buf = grown
	}
	n, err := src.Read(r.buf[r.end:])
	r.end += n
	return err
}

// Next returns the next whole event in the buffer.
func (r *Reader) Next() (Event, bool) {
	n := r.split.next(r.buf[r.start:r.end])
	if n == 0 {
		return Event{}, false
	}
	return r.take(n), true
}

// Rest returns what is left after the stream's end as an event, although no
// blank line ended it. A client would discard it; what to make of it is the
// caller's decision. Its Raw is empty when only the LF of the last event's CRLF
// is left.
func (r *Reader) Rest() (Event, bool) {
	if r.start == r.end {
		return Event{}, false
	}
	return r.take(r.end - r.start), true
}

// Passed returns the bytes of the events handed out since the last Fill or
// Passed, in one piece. They are valid until the next Fill. Between two events
// there may be the LF of a CRLF that a read had split; it is in no event's Raw.
func (r *Reader) Passed() []byte {
	b := r.buf[r.passed:r.start:r.start]
	r.passed = r.start
	return b
}

// Buffer gives the buffer back for reuse elsewhere and leaves r empty.
func (r *Reader) Buffer() []byte {
	buf := r.buf
	r.buf, r.passed, r.start, r.end = nil, 0, 0, 0
	return buf
}

func (r *Reader) take(n int) Event {
	raw := r.buf[r.start+r.split.advance() : r.start+n : r.start+n]
	r.start += n
	fields := raw
	if !r.begun {
		r.begun = true
		fields = bytes.TrimPrefix(raw, []byte(bom))
	}
	var e Event
	e, r.scratch = parse(fields, r.scratch)
	e.Raw = raw
	return e
}
