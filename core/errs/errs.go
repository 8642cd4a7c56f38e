package errs

import (
	"errors"
	"time"
)

// Kind classes a failure by what the client should do about it.
type Kind uint8

// The kinds. The comment on each gives the HTTP status that server maps it to.
const (
	Internal     Kind = iota // 500: our fault, unexplained
	BadRequest               // 400: the request cannot be served as written
	Unauthorized             // 401: no or wrong credentials
	Forbidden                // 403: known, and not allowed
	NotFound                 // 404: unknown model, adapter or route
	TooLarge                 // 413: over a stated limit
	Saturated                // 429: capacity exists and is busy; retry later
	NoCapacity               // 503: no worker can serve this now
	Upstream                 // 502: the engine failed or broke the protocol
	Timeout                  // 504: a stage's deadline passed
	Canceled                 // 499, in logs only: the client left
)

var kindNames = [...]string{
	"internal", "bad_request", "unauthorized", "forbidden", "not_found", "too_large",
	"saturated", "no_capacity", "upstream", "timeout", "canceled",
}

// String is the kind's name as it stands in metrics, logs and reason headers.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "internal"
}

// Error is a failure with both its faces.
type Error struct {
	Kind   Kind
	Client string // one sentence, safe to send
	Param  string // the request field at fault, if one is
	Code   string // stable machine word, e.g. "model_not_found"; empty means Kind's name
	// RetryAfter, when positive, tells the client how long to wait.
	RetryAfter time.Duration
	// NoRetry says that a client's automatic retry would only repeat what was
	// tried here already.
	NoRetry bool
	Cause   error // for the operator; may be nil
}

// Error gives the operator's text: the client's sentence, then the cause.
func (e *Error) Error() string {
	if e.Cause == nil {
		return e.Client
	}
	return e.Client + ": " + e.Cause.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// KindOf finds the kind of err: that of the first [Error] in its chain,
// otherwise Internal.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Internal
}

// As returns the first [Error] in err's chain, or one of kind Internal whose
// client text reveals nothing and whose cause is err.
func As(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Kind: Internal, Client: "internal error", Cause: err}
}
