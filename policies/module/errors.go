package module

import (
	"errors"
	"fmt"
)

// The reasons for which a module is refused; an [Error] wraps one of them.
var (
	// ErrMalformed says that the bytes are no WebAssembly module, or end early.
	ErrMalformed = errors.New("malformed module")
	// ErrInvalid says that the module breaks a rule of the specification: types
	// that do not fit, an index out of range.
	ErrInvalid = errors.New("invalid module")
	// ErrLimit says that the module is over one of the [Limits].
	ErrLimit = errors.New("module over a limit")
	// ErrFeature says that the module uses what policies may not use.
	ErrFeature = errors.New("feature not allowed")
	// ErrImport says that the module imports what the host does not offer.
	ErrImport = errors.New("import not offered")
)

// Error says why a module is refused and where.
type Error struct {
	Err    error  // one of the sentinels above
	Offset int    // in bytes from the module's beginning
	Func   int    // the function's index, imports counted; -1 outside bodies
	Reason string // a sentence for the module's author
}

// Error is the reason with its place.
func (e *Error) Error() string {
	if e.Func >= 0 {
		return fmt.Sprintf("%s (function %d, byte %#x)", e.Reason, e.Func, e.Offset)
	}
	return fmt.Sprintf("%s (byte %#x)", e.Reason, e.Offset)
}

// Unwrap returns the sentinel.
func (e *Error) Unwrap() error { return e.Err }
