package fake

import (
	"math/rand/v2"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
)

// Kind is a kind of fault.
type Kind uint8

// The faults.
const (
	Drop            Kind = iota // the packet never arrives
	Corrupt                     // a bit of it is flipped
	Duplicate                   // it arrives twice
	Reorder                     // packets sent after it overtake it
	Stall                       // nothing is sent for Fault.For, beginning with it
	HalfFrame                   // half of it arrives, then the link is lost
	WrongGeneration             // a frame's pages name another use of their blocks
	WrongEpoch                  // a frame, reservation or finish is of another incarnation
	Die                         // the sender's process ends
	kinds
)

var kindNames = [...]string{
	"drop", "corrupt", "duplicate", "reorder", "stall", "half frame", "wrong generation", "wrong epoch", "die",
}

// String is the fault's name.
func (k Kind) String() string { return kindNames[k] }

// Fault happens once, to one packet.
type Fault struct {
	Kind Kind
	From fleet.WorkerID // the sender
	Nth  int            // of all packets it sends, from 0
	For  time.Duration  // of a Stall
}

// RandomFaults draws n faults among the first packets of each of senders.
func RandomFaults(random *rand.Rand, n, packets int, senders ...fleet.WorkerID) []Fault {
	out := make([]Fault, n)
	for i := range out {
		out[i] = Fault{
			Kind: Kind(random.IntN(int(kinds))), From: senders[random.IntN(len(senders))], Nth: random.IntN(packets),
			For: time.Duration(random.Int64N(int64(10 * time.Second))),
		}
	}
	return out
}
