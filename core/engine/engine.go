package engine

import (
	"context"
	"errors"
	"io"

	"github.com/yardmaster/yardmaster/core/fleet"
)

// Leg says which part of a request a call computes.
type Leg uint8

// The legs.
const (
	Aggregated Leg = iota // prompt and output on one worker
	Prefill               // the prompt only, KV goes to Peer
	Decode                // the output, KV comes from Peer
)

// String is the leg's name in headers, metrics and logs.
func (l Leg) String() string { return [...]string{"aggregated", "prefill", "decode"}[l] }

// Call is one leg of one request.
type Call struct {
	RequestID string // unique per request, the same on both legs
	Path      string // the API route, e.g. /v1/chat/completions
	Body      []byte // JSON as the client sent it, but for fields the gateway owns; not modified
	Stream    bool
	Leg       Leg
	// TransferID pairs the two legs of a disaggregated request; zero otherwise.
	TransferID uint64
	// Trace is the W3C traceparent that the engine gets; empty sends none.
	Trace string
	// TokenIDs asks an engine that can for the ids of the tokens in each event of
	// the stream, by HeaderContinue; others do not notice.
	TokenIDs bool
	// Peer is the other leg's worker: the prefill worker on a decode leg, the
	// decode worker on a prefill leg. Nil on an aggregated call.
	Peer *fleet.Worker
}

// Response is an engine's answer once its status is known.
type Response struct {
	Status      int
	ContentType string
	// RetryAfter is the engine's own header, verbatim; empty when absent.
	RetryAfter string
	// KV is what became of the KV transfer on a decode leg: "moved",
	// "recomputed; <reason>", "local"; empty when the engine does not say.
	KV string
	// Continues is the engine's HeaderContinue: how many tokens of output it took
	// as given, so "0" for a new stream; empty when it knows nothing of it.
	Continues string
	// Reason is the engine's machine word for a refusal (HeaderReason), e.g.
	// ReasonDraining; empty when it gives none.
	Reason string
	// Length is the body's length in bytes as the engine states it; 0 when it does
	// not.
	Length int64
	// Body is the rest of the response. Reading it fails with ErrBroken when the
	// engine's connection ends early; io.EOF means the engine ended it properly.
	// Close aborts what is left and makes the engine stop.
	Body io.ReadCloser
}

// ErrConnect means that no connection to the engine could be had: it has seen
// nothing of the call, which may go elsewhere.
var ErrConnect = errors.New("engine did not accept the connection")

// ErrBroken means that the connection ended after the engine may have begun:
// the call must not be repeated, unless the adapter is a [Repeater] that says
// otherwise or the engine takes tokens in (HeaderContinue).
var ErrBroken = errors.New("engine broke the connection")

// Adapter speaks one engine's protocol. It is safe for concurrent use.
type Adapter interface {
	// Do sends the call to w and returns when the status is known. Cancelling
	// ctx, then or later, aborts the call in the engine. Errors wrap ErrConnect,
	// ErrBroken or ctx's error.
	Do(ctx context.Context, w *fleet.Worker, call *Call) (*Response, error)
}

// Repeater is an Adapter that knows whether its engines' calls may be repeated.
// Of others nothing is known.
type Repeater interface {
	// Repeatable reports whether a call that was lost (ErrBroken) may be sent to
	// another worker while nothing of its answer was used: computing it has no
	// effect but the answer.
	Repeatable() bool
}
