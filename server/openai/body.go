package openai

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/unit"
)

// firstRead is how much memory is given to a body before any of it came. A
// larger claim has to be lived up to.
const firstRead = 1 << 20

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
	_ = control.SetReadDeadline(time.Now().Add(a.cfg.BodyTimeout))
	body, err := grow(r.Body, r.ContentLength, limit, life)
	switch {
	case err == nil:
		// From here on the server watches the connection for the client's leaving,
		// and a deadline looks like that. After an error it stays: net/http reads
		// what is left of the body before it sends the answer.
		_ = control.SetReadDeadline(time.Time{})
		return body, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &errs.Error{Kind: errs.BadRequest, Client: fmt.Sprintf("the request body did not arrive within %v", a.cfg.BodyTimeout), Code: "body_timeout"}
	}
	if e, ok := errors.AsType[*errs.Error](err); ok {
		return nil, e
	}
	return nil, &errs.Error{Kind: errs.Canceled, Client: "the client left", Cause: fmt.Errorf("%w: %w", errGone, err)}
}

// grow reads src to its end, size bytes when that is known (not negative). The
// buffer starts small and doubles as bytes arrive.
func grow(src io.Reader, size, limit int64, life *dispatch.Life) ([]byte, error) {
	room := min(firstRead, limit)
	if size >= 0 {
		room = min(size, firstRead)
	}
	if size < 0 {
		room = min(16<<10, limit)
	}
	if err := life.Hold(unit.Bytes(room)); err != nil {
		return nil, err
	}
	buf := make([]byte, 0, room)
	for {
		n, err := src.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case errors.Is(err, io.EOF):
			return buf, nil
		case err != nil:
			return nil, err
		case size >= 0 && int64(len(buf)) == size:
			return buf, nil
		case len(buf) < cap(buf):
			continue
		case int64(len(buf)) >= limit:
			return buf, atLimit(src, limit)
		}
		room = min(int64(cap(buf)), limit-int64(cap(buf)))
		if size >= 0 {
			room = min(room, size-int64(cap(buf)))
		}
		if err := life.Hold(unit.Bytes(room)); err != nil {
			return nil, err
		}
		grown := make([]byte, len(buf), int64(cap(buf))+room)
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
