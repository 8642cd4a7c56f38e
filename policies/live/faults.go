package live

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/policies/host"
)

const (
	// faultsAllowed is how many faults within faultWindow take a version out of
	// service.
	faultsAllowed = 5
	faultWindow   = 30 * time.Second
)

// faults counts what goes wrong with a version, all its instances together.
type faults struct {
	mu      sync.Mutex
	times   [faultsAllowed]time.Time // a ring
	next    int
	reason  string
	tripped atomic.Bool
	trip    func() // called once, and must not wait

	counters    map[host.Fault]measure.Counter
	quarantined measure.Counter // calls that were not made any more
}

// outOfService is why a policy was not asked, as a word.
const outOfService = "quarantined"

func newFaults(r *measure.Registry, ref string, trip func()) *faults {
	f := &faults{trip: trip, counters: map[host.Fault]measure.Counter{}, quarantined: r.Counter(measure.PolicyFaults, ref, outOfService)}
	for _, kind := range host.Faults() {
		f.counters[kind] = r.Counter(measure.PolicyFaults, ref, kind.String())
	}
	return f
}

// out reports whether the version is out of service, and counts the call that is not
// made then.
func (f *faults) out() bool {
	if !f.tripped.Load() {
		return false
	}
	f.quarantined.Inc()
	return true
}

// note counts a fault, and trips at one too many.
func (f *faults) note(kind host.Fault, now time.Time) {
	f.counters[kind].Inc()
	if !kind.Guilty() || f.tripped.Load() {
		return
	}
	f.mu.Lock()
	f.times[f.next] = now
	f.next = (f.next + 1) % faultsAllowed
	first := f.times[f.next] // the oldest of the last five
	trips := !first.IsZero() && now.Sub(first) <= faultWindow && f.tripped.CompareAndSwap(false, true)
	if trips {
		f.reason = kind.String()
	}
	f.mu.Unlock()
	if trips {
		f.trip()
	}
}

// why is the fault that tripped.
func (f *faults) why() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reason
}
