package dispatch

import (
	"errors"
	"io"
	"time"

	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/unit"
)

const (
	// firstPiece is the memory that an answer gets at first, in bytes: most are
	// shorter. Each further piece is as long as all before it.
	firstPiece = 4 << 10
	// largestPiece is the longest of them.
	largestPiece = 1 << 20
)

var errTooLong = errors.New("dispatch: answer is longer than the limit")

// readAll reads r to its end, at most limit bytes; stated is how many there will
// be, if known, else 0. When there are more than the limit, it returns the first
// limit and errTooLong. The memory is held against the gate's budget, piece by
// piece before it is taken; of what is returned the capacity stays held. An error
// of the budget is an *errs.Error.
//
// An answer in several pieces is copied once, when its length is known.
func (l *Life) readAll(r io.Reader, stated int64, limit unit.Bytes) (body []byte, err error) {
	first := unit.Bytes(firstPiece)
	if 0 < stated && stated < firstPiece {
		first = unit.Bytes(stated) + 1 // room to see the end
	}
	var few [2][]byte
	pieces := few[:0]
	var total, held unit.Bytes
	defer func() { l.pass.Free(held - unit.Bytes(cap(body))) }()
	take := func(n unit.Bytes) ([]byte, error) {
		if err := l.hold(n); err != nil {
			return nil, err
		}
		held += n
		return make([]byte, n), nil
	}
	for ended := false; !ended && total <= limit; {
		piece, err := take(min(max(total, first), largestPiece, limit+1-total))
		if err != nil {
			return nil, err
		}
		var n int
		if n, ended, err = fill(r, piece); err != nil {
			return nil, err
		}
		pieces = append(pieces, piece[:n])
		total += unit.Bytes(n)
		first = firstPiece
	}
	whole := pieces[0]
	if len(pieces) > 1 {
		if whole, err = take(total); err != nil {
			return nil, err
		}
		at := 0
		for _, p := range pieces {
			at += copy(whole[at:], p)
		}
	}
	if total > limit {
		return whole[:limit], errTooLong
	}
	return whole, nil
}

// fill reads until p is full or r has ended. A connection that broke is an error,
// even where io.ReadFull would take it for an end.
func fill(r io.Reader, p []byte) (n int, ended bool, err error) {
	for n < len(p) {
		k, err := r.Read(p[n:])
		n += k
		if err == io.EOF {
			return n, true, nil
		}
		if err != nil {
			return n, false, err
		}
	}
	return n, false, nil
}

// hold counts memory for an answer. That there is none left is not the client's
// fault, whose request was admitted.
func (l *Life) hold(n unit.Bytes) error {
	if err := l.pass.Hold(n); err != nil {
		return &errs.Error{
			Kind: errs.NoCapacity, Client: "the gateway is holding as many bytes of bodies as it may", Code: "answer_memory",
			RetryAfter: time.Second, Cause: err,
		}
	}
	return nil
}
