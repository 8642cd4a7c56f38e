package openai

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/unit"
)

const (
	// firstRead is how much memory is given to a body before any of it came. A
	// larger claim has to be lived up to: it gets no more than
	// growth times what has come.
	firstRead = 32 << 10
	growth    = 4
	// A body has bodyGrace and its size at slowest, in bytes a second, to arrive:
	// what a client holds without sending, it does not hold long.
	bodyGrace = 10 * time.Second
	slowest   = 64 << 10
)

// readBody reads the request body. Its memory is held against the gate's budget
// before it is taken.
func (a *API) readBody(w http.ResponseWriter, r *http.Request, life *dispatch.Life) ([]byte, error) {
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return nil, &errs.Error{Kind: errs.BadRequest, Client: "compressed request bodies are not supported", Code: "unsupported_encoding"}
	}
	limit := int64(a.cfg.MaxBody)
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	if r.ContentLength == 0 {
		return nil, nil // the parser says what is missing
	}
	control := http.NewResponseController(w)
	started := time.Now()
	var patience time.Duration
	body, err := grow(r.Body, r.ContentLength, limit, func(more, room int64) error {
		patience = min(a.cfg.BodyTimeout, bodyGrace+time.Duration(room/slowest+1)*time.Second)
		_ = control.SetReadDeadline(started.Add(patience))
		return life.Hold(unit.Bytes(more))
	})
	switch {
	case err == nil:
		// From here on the server watches the connection for the client's leaving,
		// and a deadline looks like that. After an error it stays: net/http reads
		// what is left of the body before it sends the answer.
		_ = control.SetReadDeadline(time.Time{})
		return body, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &errs.Error{Kind: errs.BadRequest, Client: fmt.Sprintf("the request body did not arrive within %v", patience), Code: "body_timeout"}
	}
	if e, ok := errors.AsType[*errs.Error](err); ok {
		return nil, e
	}
	if r.ContentLength < 0 && !lost(err) {
		return nil, &errs.Error{Kind: errs.BadRequest, Client: "the request body is not well-formed chunks", Code: "bad_chunks", Cause: err}
	}
	return nil, &errs.Error{Kind: errs.Canceled, Client: "the client left", Cause: fmt.Errorf("%w: %w", errGone, err)}
}

// lost reports whether err is the connection's and not the body's.
func lost(err error) bool {
	_, network := errors.AsType[net.Error](err)
	return network || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// spare is kept free behind a body, so that an option can be put in without
// moving it to another place.
const spare = 64

// grow reads src to its end, size bytes when that is known (not negative). Before
// it takes more bytes of memory, room in all, it asks take.
func grow(src io.Reader, size, limit int64, take func(more, room int64) error) ([]byte, error) {
	claim := size
	if claim < 0 {
		claim = 16 << 10
	}
	room := min(claim, firstRead, limit)
	if err := take(room, room); err != nil {
		return nil, err
	}
	buf := make([]byte, 0, room+spare)
	for {
		n, err := src.Read(buf[len(buf) : cap(buf)-spare])
		buf = buf[:len(buf)+n]
		have := int64(len(buf))
		switch {
		case errors.Is(err, io.EOF):
			return buf, nil
		case err != nil:
			return nil, err
		case have == size:
			return buf, nil
		case have < room:
			continue
		case have >= limit:
			return buf, atLimit(src, limit)
		}
		whole := limit
		if size >= 0 {
			whole = min(size, limit)
		}
		more := min(growth*room, whole) - room
		room += more
		if err := take(more, room); err != nil {
			return nil, err
		}
		grown := make([]byte, have, room+spare)
		copy(grown, buf)
		buf = grown
	}
}

// atLimit tells a body of exactly the limit from a longer one.
func atLimit(src io.Reader, limit int64) error {
	var one [1]byte
	n, err := io.ReadFull(src, one[:])
	switch {
	case n > 0:
		return tooLarge(limit)
	case errors.Is(err, io.EOF):
		return nil
	}
	return err
}

func tooLarge(limit int64) error {
	return &errs.Error{
		Kind: errs.TooLarge, Code: "body_too_large",
		Client: fmt.Sprintf("the request body is larger than the limit of %d bytes", limit),
	}
}
