package planner

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/core/wire/control"
)

// Code says what became of a command. Its numbers stand in snapshots.
type Code uint8

// The codes.
const (
	OK            Code = iota // done, or already so
	StaleEpoch                // the worker is another incarnation by now
	UnknownWorker             // no such worker
	Taken                     // the id, or the cluster's name, belongs to another
	Full                      // a bound of the state is reached, e.g. MaxWorkers
	Refused                   // breaks a rule of the entry's version
	Ignored                   // an ignorable entry of a newer release
	Conflict                  // the version or incarnation is another than the command wanted
	UnknownTenant             // the tenant has no quota
	StaleWindow               // the window of a quota is over
	UnknownPolicy             // no such version, or nothing bound there
	Exists                    // the policy's name or version belongs to others
	Bound                     // the version is active, canary or shadow
	Pinned                    // the binding is
	Quarantined               // the version is
	NothingThere              // to promote, or to go back to
	ClockOff                  // the window is not the leader's, who did not propose it; never applied
)

var codeNames = [...]string{
	"ok", "stale_epoch", "unknown_worker", "taken", "full", "refused", "ignored", "conflict", "unknown_tenant", "stale_window",
	"unknown_policy", "exists", "bound", "pinned", "quarantined", "nothing_there", "clock_off",
}

// String is the code's name in logs.
func (c Code) String() string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return "unknown"
}

var (
	// ErrStaleEpoch means that the command named an incarnation which another
	// has replaced.
	ErrStaleEpoch = errors.New("stale epoch")
	// ErrUnknownWorker means that no worker has the id.
	ErrUnknownWorker = errors.New("unknown worker")
	// ErrTaken means that the name belongs to another worker or cluster.
	ErrTaken = errors.New("taken by another")
	// ErrFull means that a bound of the state is reached, e.g. MaxWorkers.
	ErrFull = errors.New("no room for more")
	// ErrRefused means that the state machine found the command unacceptable.
	ErrRefused = errors.New("refused")
	// ErrConflict means that the register, member, binding or plan is not, or no
	// longer, of the version, incarnation or index that the command wanted.
	ErrConflict = errors.New("changed by another meanwhile")
	// ErrUnknownTenant means that the tenant has no quota, and so no limit.
	ErrUnknownTenant = errors.New("tenant has no quota")
	// ErrStaleWindow means that a newer window of the quota has begun.
	ErrStaleWindow = errors.New("window of the quota is over")
	// ErrClock means that the window of a grant is more than one off the leader's
	// clock. Nothing was proposed.
	ErrClock = errors.New("window of the quota is far from the leader's clock")
)

var codeErrors = [...]error{
	nil, ErrStaleEpoch, ErrUnknownWorker, ErrTaken, ErrFull, ErrRefused, nil, ErrConflict, ErrUnknownTenant, ErrStaleWindow,
	rollout.ErrUnknown, rollout.ErrExists, rollout.ErrBound, rollout.ErrPinned, rollout.ErrQuarantined, rollout.ErrNothing, ErrClock,
}

// Result is what an applied command got.
type Result struct {
	Index   uint64      // of the entry that decided it, the first of repeated ones
	Code    Code        // OK, or why nothing was done
	Epoch   fleet.Epoch // the worker's epoch, for worker commands that succeed
	Changed bool        // whether state changed
	// Version is that of the register or member after the command, or the index of
	// the policy, binding or plan, 0 where there is none; with Conflict it is what
	// stands in the way.
	Version uint64
	Granted unit.Tokens // what a grant gave, or a return took back
}

// Err is nil for OK and Ignored, else the sentinel of the code: one of this
// package, or of package rollout for what only policies can get.
func (r Result) Err() error {
	if int(r.Code) >= len(codeErrors) {
		return fmt.Errorf("%w: code %d", ErrRefused, r.Code)
	}
	return codeErrors[r.Code]
}

// AppendResult appends the encoding of r, which another node can parse.
func AppendResult(dst []byte, r Result) []byte {
	m := &control.CommandResult{
		Index: r.Index, Code: uint32(r.Code), Epoch: uint64(r.Epoch), Changed: r.Changed, Version: r.Version, Granted: int64(r.Granted),
	}
	dst, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(dst, m)
	if err != nil { // numbers only
		panic(fmt.Sprintf("planner: result does not encode: %v", err))
	}
	return dst
}

// ParseResult reads what AppendResult wrote. A code that a newer release added
// stays as it is; its Err wraps ErrRefused. Errors wrap ErrMalformed.
func ParseResult(b []byte) (Result, error) {
	var m control.CommandResult
	if err := unmarshal(b, &m); err != nil {
		return Result{}, err
	}
	if m.GetCode() > uint32(^Code(0)) {
		return Result{}, fmt.Errorf("%w: code %d of a result", ErrMalformed, m.GetCode())
	}
	return Result{
		Index: m.GetIndex(), Code: Code(m.GetCode()), Epoch: fleet.Epoch(m.GetEpoch()), Changed: m.GetChanged(),
		Version: m.GetVersion(), Granted: unit.Tokens(m.GetGranted()),
	}, nil
}
