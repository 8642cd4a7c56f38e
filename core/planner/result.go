package planner

import (
	"errors"
	"fmt"

	"github.com/yardmaster/yardmaster/core/fleet"
)

// Code says what became of a command. Its numbers stand in snapshots.
type Code uint8

// The codes.
const (
	OK            Code = iota // done, or already so
	StaleEpoch                // the worker is another incarnation by now
	UnknownWorker             // no such worker
	Taken                     // the id, or the cluster's name, belongs to another
	Full                      // MaxWorkers are registered
	Refused                   // breaks a rule of the entry's version
	Ignored                   // an ignorable entry of a newer release
)

var codeNames = [...]string{"ok", "stale_epoch", "unknown_worker", "taken", "full", "refused", "ignored"}

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
	// ErrFull means that the fleet has reached MaxWorkers.
	ErrFull = errors.New("fleet is full")
	// ErrRefused means that the state machine found the command unacceptable.
	ErrRefused = errors.New("refused")
)

var codeErrors = [...]error{nil, ErrStaleEpoch, ErrUnknownWorker, ErrTaken, ErrFull, ErrRefused, nil}

// Result is what an applied command got.
type Result struct {
	Index   uint64      // of the entry that decided it, the first of repeated ones
	Code    Code        // OK, or why nothing was done
	Epoch   fleet.Epoch // the worker's epoch, for worker commands that succeed
	Changed bool        // whether state changed
}

// Err is nil for OK and Ignored, else the sentinel of the code.
func (r Result) Err() error {
	if int(r.Code) >= len(codeErrors) {
		return fmt.Errorf("%w: code %d", ErrRefused, r.Code)
	}
	return codeErrors[r.Code]
}
