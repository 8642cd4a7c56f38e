package rollout

import "errors"

var (
	// ErrInvalid means a version, stage or change that breaks a rule of this
	// package, whatever the table.
	ErrInvalid = errors.New("invalid")
	// ErrUnknown means that no version has the digest, or nothing is bound there.
	ErrUnknown = errors.New("no such policy or binding")
	// ErrExists means that the name and version belong to other bytes, or the
	// policy is of another kind.
	ErrExists = errors.New("exists already")
	// ErrBound means that the version is active, canary or shadow somewhere.
	ErrBound = errors.New("still bound")
	// ErrPinned means that the binding is pinned, so no verb but unpin moves it.
	ErrPinned = errors.New("binding is pinned")
	// ErrQuarantined means that the version was taken out of service for its faults.
	ErrQuarantined = errors.New("version is quarantined")
	// ErrConflict means that the binding was changed since the proposer looked.
	ErrConflict = errors.New("binding was changed by another meanwhile")
	// ErrNothing means that there is nothing to promote, or to go back to.
	ErrNothing = errors.New("nothing to do it with")
	// ErrFull means that one of the bounds of this package is reached.
	ErrFull = errors.New("no room for more")
)
