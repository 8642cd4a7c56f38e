package host

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tetratelabs/wazero"

	"github.com/yardmaster/yardmaster/policies/abi"
)

// Policy is a compiled policy with its instances. Its methods may be called from
// several goroutines.
type Policy struct {
	host     *Host
	services Services
	manifest *abi.Manifest
	params   []float64
	slice    int64    // of fuel between pauses, or 0
	export   string   // the call by which it answers
	unknowns []uint32 // what stands for unknown in each column
	compiled wazero.CompiledModule
	release  func(context.Context) error // frees what belongs to this policy alone; nil is nothing

	slots  []atomic.Pointer[Instance] // nil where one is lent
	next   atomic.Uint32              // where the last one was found
	broken chan *Instance             // to be replaced; as many fit as there are
	lost   atomic.Int64
	closed atomic.Bool
	lent   atomic.Int64
	idle   chan struct{} // told when one comes back to a closed policy
	mender sync.WaitGroup
}

// Manifest is what the policy says of itself. It is not to be changed.
func (p *Policy) Manifest() *abi.Manifest { return p.manifest }

// Lost is how many instances are missing after faults and have not been replaced for
// several tries. Trying goes on.
func (p *Policy) Lost() int64 { return p.lost.Load() }

// fill makes the instances and starts what replaces them.
func (p *Policy) fill(ctx context.Context, n int) error {
	p.slots = make([]atomic.Pointer[Instance], n)
	p.broken = make(chan *Instance, n)
	p.idle = make(chan struct{}, 1)
	for i := range p.slots {
		in, err := p.instantiate(ctx)
		if err != nil {
			return errors.Join(err, p.empty(ctx))
		}
		p.slots[i].Store(in)
	}
	p.mender.Go(p.mend)
	return nil
}

// Take lends an instance. It is nil if all are busy or the policy is closed: the
// caller decides without it. What was taken must be put back.
func (p *Policy) Take() *Instance {
	p.lent.Add(1)
	if !p.closed.Load() {
		n := uint32(len(p.slots))
		first := p.next.Load()
		for i := range n {
			slot := &p.slots[(first+i)%n]
			if in := slot.Load(); in != nil && slot.CompareAndSwap(in, nil) {
				in.seed = 0
				return in
			}
		}
	}
	p.returned()
	return nil
}

// Put takes an instance back. One that failed is replaced, off the caller's way.
func (p *Policy) Put(in *Instance) {
	if in.failed {
		p.broken <- in // never full: there are no more instances than places
	} else {
		p.place(in)
	}
	p.returned()
}

// place puts an instance where one is missing.
func (p *Policy) place(in *Instance) {
	n := uint32(len(p.slots))
	for first := p.next.Load(); ; {
		for i := range n {
			if p.slots[(first+i)%n].CompareAndSwap(nil, in) {
				p.next.Store((first + i) % n)
				return
			}
		}
	}
}

func (p *Policy) returned() {
	if p.lent.Add(-1) == 0 && p.closed.Load() {
		select {
		case p.idle <- struct{}{}:
		default:
		}
	}
}

const (
	// Pauses between tries to replace an instance, each twice the one before.
	firstPause, longestPause = 20 * time.Millisecond, 5 * time.Second
	// patience is how many tries in a row fail before what is missing counts as lost.
	patience = 6
)

// mend replaces broken instances until the policy closes. What cannot be replaced at
// once, for want of memory or since the guest does not start, is tried again and again.
func (p *Policy) mend() {
	ctx := context.Background()          // instances outlive whoever loaded the policy
	timer := time.NewTimer(longestPause) //nolint:forbidigo // pauses of one process, which nothing replays
	defer timer.Stop()
	missing, failures := 0, 0
	for {
		select {
		case in, open := <-p.broken:
			if !open {
				return
			}
			_ = in.guest.Close(ctx) // its memory goes with it, or with the runtime
			missing++
		case <-timer.C:
		}
		for ; missing > 0 && !p.closed.Load(); missing-- {
			fresh, err := p.instantiate(ctx)
			if err != nil {
				failures++
				timer.Reset(min(firstPause<<min(failures-1, 16), longestPause))
				break
			}
			failures = 0
			p.place(fresh)
		}
		lost := 0
		if failures >= patience {
			lost = missing
		}
		p.lost.Store(int64(lost))
	}
}

// none is why Take had no instance.
func (p *Policy) none() Fault {
	if p.lost.Load() == int64(len(p.slots)) {
		return FaultLost
	}
	return FaultBusy
}

// Close lends no more instances, waits for those that are lent until ctx ends, and
// frees everything. After an error nothing that is still lent has been freed, and
// Close may be called again.
func (p *Policy) Close(ctx context.Context) error {
	p.closed.Store(true)
	for p.lent.Load() > 0 {
		select {
		case <-p.idle:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if p.broken != nil {
		close(p.broken)
		p.mender.Wait()
		p.broken = nil
		p.host.open.Add(-1)
	}
	err := p.empty(ctx)
	if p.release != nil {
		err = errors.Join(err, p.release(ctx))
		p.release = nil
	}
	return err
}

// empty closes the instances that are not lent.
func (p *Policy) empty(ctx context.Context) error {
	var all []error
	for i := range p.slots {
		if in := p.slots[i].Swap(nil); in != nil {
			all = append(all, in.guest.Close(ctx))
		}
	}
	return errors.Join(all...)
}
