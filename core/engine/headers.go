package engine

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/yardmaster/yardmaster/core/fleet"
)

// Headers between a gateway and an engine that a Yardmaster worker hosts (cpu,
// scripted). They carry what other engines take as body fields, so that the
// client's body passes untouched. A gateway sets them itself and never forwards
// a client's.
const (
	HeaderRequestID = "X-Request-Id"
	HeaderLeg       = "X-Yardmaster-Leg"      // prefill or decode; absent when aggregated
	HeaderTransfer  = "X-Yardmaster-Transfer" // transfer id, 16 hex digits
	HeaderPeer      = "X-Yardmaster-Peer"     // the other leg's worker, see Peer
	HeaderEpoch     = "X-Yardmaster-Epoch"    // the epoch the gateway means; a worker of another epoch answers 421
	HeaderKV        = "X-Yardmaster-Kv"       // response, decode leg: Response.KV
	HeaderReason    = "X-Yardmaster-Reason"   // response: machine word for a refusal, e.g. stale_epoch, draining
	HeaderContinue  = "X-Yardmaster-Continue" // see ContinueField
	HeaderTrace     = "Traceparent"           // W3C trace context, passed on
)

// ContinueField is the member of a request's body by which a stream that one
// engine began is continued by another:
//
//	"yardmaster_continue":{"token_ids":[…]}
//
// holds the ids of the output so far. The engine takes them as generated after
// the prompt: it sends what follows, without the chunk that names the role, and
// counts them as output in usage and against max_tokens. Only a gateway may send
// it; clients' are taken out.
//
// A gateway that may want to continue a stream sends HeaderContinue with
// ContinueIDs. An engine that can do all this then puts "token_ids" into the
// choice of every event that carries output, and answers with HeaderContinue set
// to the number of output tokens it continues from, 0 for a new stream. It says
// so, too, that computing a stream again, on another engine, does no harm. An
// engine that ignores the header is not asked to continue anything.
const (
	ContinueField = "yardmaster_continue"
	ContinueIDs   = "ids"
)

// Reasons that the gateway acts on.
const (
	ReasonDraining   = "draining"    // 503: the worker takes no new work and is not at fault
	ReasonStaleEpoch = "stale_epoch" // 421: see StatusStaleEpoch
	// The next two are 400: the worker cannot compute the call as a leg, or no call
	// at all as one. Nothing was begun.
	ReasonBadLeg          = "bad_leg"
	ReasonLegsUnsupported = "legs_unsupported"
)

// RefusesLeg reports whether a machine word says that a worker takes a call as
// no leg, while it may take it aggregated.
func RefusesLeg(reason string) bool { return reason == ReasonBadLeg || reason == ReasonLegsUnsupported }

// StatusStaleEpoch is the status (Misdirected Request) of a worker that is not
// the incarnation meant. Nothing was begun: the call may go elsewhere. What is meant
// for a later incarnation than the worker's waits first; see [OwnEpoch].
const StatusStaleEpoch = 421

// Peer is the part of the other leg's worker that a worker needs.
type Peer struct {
	ID       fleet.WorkerID
	Epoch    fleet.Epoch
	Transfer string // host:port
}

// ErrPeer means a malformed peer header.
var ErrPeer = errors.New("malformed peer")

// PeerOf is the peer that w is to the other leg.
func PeerOf(w *fleet.Worker) Peer { return Peer{ID: w.ID, Epoch: w.Epoch, Transfer: w.Transfer} }

// String encodes the peer for HeaderPeer: id;epoch;transfer.
func (p Peer) String() string {
	return string(p.ID) + ";" + strconv.FormatUint(uint64(p.Epoch), 10) + ";" + p.Transfer
}

// ParsePeer decodes HeaderPeer. The id may contain semicolons. Errors wrap ErrPeer.
func ParsePeer(s string) (Peer, error) {
	last := strings.LastIndexByte(s, ';')
	if last < 0 {
		return Peer{}, fmt.Errorf("%w: %q", ErrPeer, s)
	}
	mid := strings.LastIndexByte(s[:last], ';')
	if mid < 1 {
		return Peer{}, fmt.Errorf("%w: %q", ErrPeer, s)
	}
	epoch, err := strconv.ParseUint(s[mid+1:last], 10, 64)
	if err != nil {
		return Peer{}, fmt.Errorf("%w: epoch in %q", ErrPeer, s)
	}
	return Peer{ID: fleet.WorkerID(s[:mid]), Epoch: fleet.Epoch(epoch), Transfer: s[last+1:]}, nil
}
