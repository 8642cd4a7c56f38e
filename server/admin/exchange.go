package admin

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

// stallTime is how long a stream may stand still.
const stallTime = 30 * time.Second

// present answers for a process without the thing that the paths are about.
func present(there bool, code, message string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		if there {
			return next
		}
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fail(w, http.StatusNotFound, code, message)
		})
	}
}

// lasting is a time for a change, which goes on when the client leaves: half of one is
// what nobody wants.
func lasting(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), limit)
}

// upload is the body, of which no more than most bytes are read, and whose client may
// not stand still. Its error past that is one that tooLarge knows.
func upload(w http.ResponseWriter, r *http.Request, most int64) io.Reader {
	return &patient{w: w, r: http.MaxBytesReader(w, r.Body, most)}
}

func tooLarge(err error) bool {
	_, ok := errors.AsType[*http.MaxBytesError](err)
	return ok
}

// patient moves the connection's deadlines along with the bytes: a whole stream
// may take long, standing still may not.
type patient struct {
	w     http.ResponseWriter
	r     io.Reader
	begun bool // something was written
}

// Write implements io.Writer.
func (p *patient) Write(b []byte) (int, error) {
	extend(p.w, stallTime)
	if !p.begun {
		p.begun = true
		p.w.Header().Set("Content-Type", "application/octet-stream")
	}
	return p.w.Write(b)
}

// Read implements io.Reader.
func (p *patient) Read(b []byte) (int, error) {
	// A connection that cannot be given a deadline has none to move.
	_ = http.NewResponseController(p.w).SetReadDeadline(time.Now().Add(stallTime))
	return p.r.Read(b)
}

// extend gives the answer until d from now.
func extend(w http.ResponseWriter, d time.Duration) {
	// A connection that cannot be given a deadline has none to move.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d))
}
