package dispatch

import (
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/core/wire/edge"
)

// Head precedes an answer.
type Head struct {
	Status      int
	ContentType string
	Stream      bool
	// RetryAfter is the engine's own, verbatim; empty when it gave none.
	RetryAfter string
	// NoRetry says that a client's automatic retry would only repeat what was
	// tried here already.
	NoRetry   bool
	Placement *Placement
}

// Sink takes an answer. Its methods are called by one goroutine, Begin first
// and once; an error from either means that the client is gone.
type Sink interface {
	Begin(Head) error
	// Write delivers whole events, or all of a body that is not streamed, before
	// it returns. It does not keep p.
	Write(p []byte) error
}

// Placement explains where a request went.
type Placement struct {
	Path, Reason string
	// Mandate is by which policy, and under which entry of the log, it was decided.
	route.Mandate
	// Fallback is why another policy answered in its place, a machine word; empty if
	// it answered itself.
	Fallback               string
	Serve, Prefill         fleet.WorkerID // Prefill is empty when aggregated
	NextServe, NextPrefill fleet.WorkerID // runners-up; empty when there was none
	// Prompt is the prompt's length, estimated unless Exact, and Hit the leading
	// part of it that Serve was believed to hold.
	Prompt, Hit unit.Tokens
	Exact       bool
	// MinPrompt is what Prompt, less Hit, was compared with, where that decided.
	MinPrompt unit.Tokens
	// KV is what the decode worker said of the transfer; empty when it did not.
	KV string
	// Failovers is how many workers did not take the request before.
	Failovers int
	// Migrations is how often the stream went on elsewhere after its worker was
	// lost.
	Migrations int
	// PrefillFault is why a prefill leg failed, a machine word; empty when none
	// did. It is set when the request has ended.
	PrefillFault string
}

// String is the placement on one line: path, then key=value pairs, separated by
// semicolons.
func (p *Placement) String() string { return string(p.append(nil)) }

// AppendText appends what String returns; it never fails.
func (p *Placement) AppendText(b []byte) ([]byte, error) { return p.append(b), nil }

func (p *Placement) append(b []byte) []byte {
	b = append(b, p.Path...)
	b = appendPair(b, "reason", p.Reason)
	if p.MinPrompt > 0 {
		b = appendNumber(b, "prompt", int(p.Prompt))
		b = appendNumber(b, "min-prompt", int(p.MinPrompt))
	}
	b = appendPair(b, "policy", p.Policy)
	if p.Index > 0 {
		b = strconv.AppendUint(appendKey(b, "policy-index"), p.Index, 10)
	}
	if p.Canary {
		b = appendPair(b, "stage", "canary")
	}
	b = appendPair(b, "fallback", p.Fallback)
	b = appendPair(b, "prefill", string(p.Prefill))
	serving := "worker"
	if p.Prefill != "" {
		serving = "decode"
	}
	b = appendPair(b, serving, string(p.Serve))
	b = appendPair(b, "next", string(p.NextServe))
	b = appendPair(b, "next-prefill", string(p.NextPrefill))
	if p.Hit > 0 {
		b = appendNumber(b, "hit", int(p.Hit))
		b = append(b, '/')
		b = strconv.AppendInt(b, int64(p.Prompt), 10)
	}
	if p.Failovers > 0 {
		b = appendNumber(b, "failovers", p.Failovers)
	}
	if p.Migrations > 0 {
		b = appendNumber(b, "migrations", p.Migrations)
	}
	kv, why, _ := strings.Cut(p.KV, ";")
	b = appendPair(b, "kv", strings.TrimSpace(kv))
	return appendPair(b, "kv-reason", strings.TrimSpace(why))
}

// appendPair appends a pair, unless its value is empty.
func appendPair(b []byte, key, value string) []byte {
	if value == "" {
		return b
	}
	return append(appendKey(b, key), value...)
}

func appendNumber(b []byte, key string, value int) []byte {
	return strconv.AppendInt(appendKey(b, key), int64(value), 10)
}

func appendKey(b []byte, key string) []byte {
	b = append(b, "; "...)
	b = append(b, key...)
	return append(b, '=')
}

// Outcome is how a request ended.
type Outcome struct {
	// Name is the outcome in metrics and log: ok, client_error, saturated,
	// no_capacity, upstream, timeout, canceled, internal.
	Name string
	// Status is the status that was sent, or that belongs to Err.
	Status int
	// Begun says that the sink has seen Begin.
	Begun bool
	// Err is what the client still has to be told: as the answer when nothing
	// has begun, else as the stream's last event before its connection is cut.
	// It is nil when the answer is complete, an engine's own error included.
	Err *errs.Error
	// Placement is nil when no worker was chosen, unless admission refused the request:
	// then its path is PathRefused.
	Placement *Placement
	Usage     edge.Usage
	// TTFT is from acceptance to the first token of a stream; 0 without one.
	TTFT     time.Duration
	Duration time.Duration
}

// nameOf is the outcome's name for a failure of kind k.
func nameOf(k errs.Kind) string {
	switch k {
	case errs.BadRequest, errs.Unauthorized, errs.Forbidden, errs.NotFound, errs.TooLarge:
		return "client_error"
	case errs.Saturated, errs.NoCapacity, errs.Upstream, errs.Timeout, errs.Canceled, errs.Internal:
		return k.String()
	}
	return errs.Internal.String()
}
