package host

import (
	"errors"
	"sync/atomic"
)

// Fault is why a policy did not answer and its fallback did.
type Fault int

// The faults.
const (
	NoFault       Fault = iota // it answered
	FaultBusy                  // all instances were lent
	FaultFuel                  // the budget was used up
	FaultTrap                  // the guest trapped
	FaultRefused               // the guest said that it cannot say, or said what it may not
	FaultRows                  // more candidates than the guest has room for
	FaultScores                // no candidate got a score that is a number
	FaultAbstains              // the guest has no opinion, which ym_route may say
	FaultLost                  // no instance is left, and none can be made
	faultKinds
)

// String is the fault's name in metrics and explanations.
func (f Fault) String() string {
	return [...]string{"none", "busy", "fuel", "trap", "refused", "rows", "scores", "abstains", "lost"}[f]
}

// Guilty says whether the fault is the guest's own, for which it may be quarantined. A
// pool that is too small for the traffic is not, nor is a fleet larger than the guest
// said it has room for, nor an opinion that it need not have.
func (f Fault) Guilty() bool {
	switch f {
	case FaultFuel, FaultTrap, FaultRefused, FaultScores, FaultLost:
		return true
	default:
		return false
	}
}

// Faults are all kinds, for whoever makes metrics of them.
func Faults() []Fault {
	var all []Fault
	for f := FaultBusy; f < faultKinds; f++ {
		all = append(all, f)
	}
	return all
}

// Counts is what became of calls.
type Counts struct {
	Answered uint64
	Faults   [faultKinds]uint64 // by Fault
}

// Guilty is how many faults were the guest's own.
func (c *Counts) Guilty() uint64 {
	sum := uint64(0)
	for _, f := range Faults() {
		if f.Guilty() {
			sum += c.Faults[f]
		}
	}
	return sum
}

// tally counts while calls go on.
type tally struct{ kinds [faultKinds]atomic.Uint64 }

func (t *tally) add(f Fault) { t.kinds[f].Add(1) }

func (t *tally) counts() Counts {
	var c Counts
	for f := range t.kinds {
		c.Faults[f] = t.kinds[f].Load()
	}
	c.Answered, c.Faults[NoFault] = c.Faults[NoFault], 0
	return c
}

func faultOf(err error) Fault {
	switch {
	case err == nil:
		return NoFault
	case errors.Is(err, ErrFuel):
		return FaultFuel
	case errors.Is(err, ErrTrap):
		return FaultTrap
	case errors.Is(err, ErrRows):
		return FaultRows
	case errors.Is(err, errAbstains):
		return FaultAbstains
	default: // ErrRefused, or a verdict that is none
		return FaultRefused
	}
}

// errAbstains says that a router has no opinion.
var errAbstains = errors.New("policy has no opinion")
