package transfer

import "fmt"

// State is how far one side of a transfer has come.
type State uint8

// The states. Both sides pass through them in this order; a side may skip those
// that are the other's to see (an import is never Ready).
const (
	Offered   State = iota // one leg is here, the other is not
	Reserved               // destination pages are held for it, nothing has moved
	Ready                  // a group of pages is computed and queued
	Moving                 // a page is under way
	Verifying              // everything was sent; the destination checks
	Committed              // verified: the pages are the destination's
	Aborting               // it failed; somebody may still touch its pages
	Fenced                 // it failed, and nobody touches its pages any more
	Released               // this side holds nothing for it any more
)

var stateNames = [...]string{"offered", "reserved", "ready", "moving", "verifying", "committed", "aborting", "fenced", "released"}

// String is the state's name.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "unknown"
}

// live reports whether the transfer may still succeed.
func (s State) live() bool { return s < Committed }

// may reports whether a side in s may go to t.
func (s State) may(t State) bool {
	switch t {
	case Offered:
		return false
	case Reserved:
		return s == Offered
	case Ready:
		return s == Reserved || s == Moving
	case Moving:
		return s == Reserved || s == Ready
	case Verifying:
		return s == Ready || s == Moving || s == Reserved
	case Committed:
		return s == Verifying
	case Aborting:
		return s.live()
	case Fenced:
		return s == Aborting
	case Released:
		return s == Committed || s == Fenced
	default:
		return false
	}
}

// to moves s to t. A step that the machine does not have is a broken invariant.
func (s *State) to(t State) {
	if *s == t {
		return
	}
	if !s.may(t) {
		panic(fmt.Sprintf("transfer: no step from %v to %v", *s, t))
	}
	*s = t
}
