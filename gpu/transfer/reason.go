package transfer

import "errors"

// Reason is a short word that says why a transfer failed. It stands in metrics,
// headers and on the wire.
type Reason string

// The reasons.
const (
	ReasonConnect    Reason = "connect"    // no connection to the peer, or it was lost
	ReasonEpoch      Reason = "epoch"      // one side is not the incarnation meant
	ReasonLease      Reason = "lease"      // the peer fell silent
	ReasonChecksum   Reason = "checksum"   // bytes arrived that were not sent
	ReasonGeneration Reason = "generation" // a page was meant for an earlier use of its block
	ReasonBounds     Reason = "bounds"     // a message names pages outside the reservation
	ReasonCoverage   Reason = "coverage"   // the pages that came are not those reserved
	ReasonPeerAbort  Reason = "peer_abort" // the other leg gave up
	ReasonDigest     Reason = "digest"     // the two legs have different prompts
	ReasonLayout     Reason = "layout"     // the two workers' KV is not interchangeable
	ReasonTimeout    Reason = "timeout"    // the other leg never came, or took too long
	ReasonCanceled   Reason = "canceled"   // this side gave up
	ReasonBusy       Reason = "busy"       // a bound on transfers or connections is reached
	ReasonClosed     Reason = "closed"     // this side shuts down
	ReasonNotNeeded  Reason = "not_needed" // the destination has the KV already
)

// reasons gives each reason its code on the wire: its index. Append only.
var reasons = [...]Reason{
	"", ReasonConnect, ReasonEpoch, ReasonLease, ReasonChecksum, ReasonGeneration, ReasonBounds, ReasonCoverage,
	ReasonPeerAbort, ReasonDigest, ReasonLayout, ReasonTimeout, ReasonCanceled, ReasonBusy, ReasonClosed,
	ReasonNotNeeded,
}

func (r Reason) code() byte {
	for i, known := range reasons {
		if r == known {
			return byte(i)
		}
	}
	return ReasonPeerAbort.code()
}

func reasonOf(code byte) Reason {
	if int(code) < len(reasons) && code != 0 {
		return reasons[code]
	}
	return ReasonPeerAbort
}

// fromPeer is the reason as the side sees it that is told: a peer that left on
// purpose has aborted.
func (r Reason) fromPeer() Reason {
	if r == ReasonCanceled || r == ReasonClosed {
		return ReasonPeerAbort
	}
	return r
}

// Error is why a transfer failed.
type Error struct {
	Why   Reason
	Cause error // for the operator; may be nil
}

// Error names the reason and the cause.
func (e *Error) Error() string {
	if e.Cause == nil {
		return "transfer: " + string(e.Why)
	}
	return "transfer: " + string(e.Why) + ": " + e.Cause.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Reason is the reason's word.
func (e *Error) Reason() string { return string(e.Why) }

// Failure makes an Error of why and a cause, which may be nil.
func Failure(why Reason, cause error) *Error { return &Error{Why: why, Cause: cause} }

// AsError finds the Error in err's chain, or calls it why.
func AsError(why Reason, err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return Failure(why, err)
}
