package openai

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/wire/openai"
)

// WriteError answers with err in the OpenAI envelope, at the status of its kind.
func WriteError(w http.ResponseWriter, err error) {
	e := errs.As(err)
	WriteErrorStatus(w, openai.Status(e.Kind), e)
}

// WriteErrorStatus is WriteError with a status that no kind stands for.
func WriteErrorStatus(w http.ResponseWriter, status int, e *errs.Error) {
	if e.Kind == errs.Canceled {
		panic(http.ErrAbortHandler) // nobody is left to read it
	}
	h := w.Header()
	h["Content-Type"] = []string{"application/json"}
	h[headerReason] = []string{reason(e)}
	after := ""
	if e.RetryAfter > 0 {
		after = strconv.Itoa(int((e.RetryAfter + time.Second - 1) / time.Second))
	}
	advise(h, e.Kind, after, e.NoRetry)
	body := openai.AppendError(nil, e)
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body) // an error here means that the client left
}

// advise tells a client whether to come back, and when. What was too busy is
// worth another try; what timed out here would be computed twice, and what was
// offered to several workers already would be offered to all of them again.
func advise(h http.Header, kind errs.Kind, after string, tried bool) {
	switch kind {
	case errs.Saturated, errs.NoCapacity:
		if after == "" {
			after = "1"
		}
		h["Retry-After"] = []string{after}
		h["X-Should-Retry"] = []string{strconv.FormatBool(!tried)}
	case errs.Timeout:
		h["X-Should-Retry"] = []string{"false"}
	case errs.Upstream:
		if tried {
			h["X-Should-Retry"] = []string{"false"}
		}
	case errs.Internal, errs.BadRequest, errs.Unauthorized, errs.Forbidden, errs.NotFound, errs.TooLarge, errs.Canceled:
	}
}

// maxRequestID is the longest request id taken from a client, in bytes.
const maxRequestID = 128

// Identify returns the request's id, the client's own if it is of harmless
// characters, and echoes it in the response.
func Identify(w http.ResponseWriter, r *http.Request) string {
	id := r.Header.Get(headerRequestID)
	if !harmless(id) {
		id = newID()
	}
	w.Header()[headerRequestID] = []string{id}
	return id
}

func harmless(id string) bool {
	if id == "" || len(id) > maxRequestID {
		return false
	}
	for _, c := range []byte(id) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return true
}

// newID is unique; nothing depends on its being hard to guess.
func newID() string {
	var b [16]byte
	binary.NativeEndian.PutUint64(b[:8], rand.Uint64()) //nolint:gosec // no secret
	binary.NativeEndian.PutUint64(b[8:], rand.Uint64()) //nolint:gosec // no secret
	return hex.EncodeToString(b[:])
}

// NotFound answers for paths that are not routes.
func NotFound(w http.ResponseWriter, r *http.Request) {
	Identify(w, r)
	WriteError(w, &errs.Error{Kind: errs.NotFound, Client: "there is no such route", Code: "route_not_found", Cause: errors.New(r.URL.Path)})
}

// MethodNotAllowed answers for routes that have another method.
func MethodNotAllowed(w http.ResponseWriter, r *http.Request) {
	Identify(w, r)
	routes := chi.RouteContext(r.Context()).Routes
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
		if routes.Match(chi.NewRouteContext(), method, r.URL.Path) {
			w.Header().Add("Allow", method)
		}
	}
	WriteErrorStatus(w, http.StatusMethodNotAllowed, &errs.Error{Kind: errs.BadRequest, Client: "the method " + r.Method + " is not allowed here", Code: "method_not_allowed"})
}
