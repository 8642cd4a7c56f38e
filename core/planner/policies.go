package planner

import (
	"errors"

	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/scale"
)

// Rollout is the policies' versions, bindings and states as of one index. It is
// never nil, and immutable.
func (m *Machine) Rollout() *rollout.Table { return m.rollout.Load() }

// plan is a plan in force.
type plan struct {
	scale.Plan
	index uint64
}

// Plan is how many workers each pool is to have, and the index of the plan; nil
// and 0 where none was made yet. Do not modify it.
func (m *Machine) Plan() (*scale.Plan, uint64) {
	p := m.plan.Load()
	if p == nil {
		return nil, 0
	}
	return &p.Plan, p.index
}

// Changed is closed at the next change of what Rollout or Plan give, a restored
// snapshot among them. Take it before reading: then no change is missed.
func (m *Machine) Changed() <-chan struct{} { return *m.changed.Load() }

// ring wakes those who wait for a change.
func (m *Machine) ring() {
	next := make(chan struct{})
	close(*m.changed.Swap(&next))
}

// execute3 carries out commands of feature level 3.
func (m *Machine) execute3(index uint64, cmd Command) (res Result) {
	now := m.rollout.Load()
	var next *rollout.Table
	var err error
	switch c := cmd.(type) {
	case PutPolicy:
		next, err = now.Put(c.Version, index)
		v, _ := next.Version(c.Digest)
		res.Version = v.Index
	case DeletePolicy:
		next, err = now.Delete(c.Digest, index)
	case ChangeBinding:
		next, err = now.Change(c.Change, index)
		b, _ := next.Binding(c.Kind, c.Model)
		res.Version = b.Index
	case QuarantinePolicy:
		next, err = now.Quarantine(c.Digest, c.Reason, index)
	case WritePolicyState:
		next, err = now.WriteState(c.Policy, c.Writes, index)
	case SetScalePlan:
		return m.setPlan(index, c)
	default:
		return Result{Code: Ignored}
	}
	if res.Code = rolloutCode(err); next != now {
		m.rollout.Store(next)
		m.ring()
		res.Changed = true
	}
	return res
}

// rolloutCode is what an error of the table is to the proposer.
func rolloutCode(err error) Code {
	if err == nil {
		return OK
	}
	for _, known := range [...]struct {
		err  error
		code Code
	}{
		{rollout.ErrUnknown, UnknownPolicy},
		{rollout.ErrExists, Exists},
		{rollout.ErrBound, Bound},
		{rollout.ErrPinned, Pinned},
		{rollout.ErrQuarantined, Quarantined},
		{rollout.ErrConflict, Conflict},
		{rollout.ErrNothing, NothingThere},
		{rollout.ErrFull, Full},
	} {
		if errors.Is(err, known.err) {
			return known.code
		}
	}
	return Refused
}

func (m *Machine) setPlan(index uint64, c SetScalePlan) Result {
	old, version := m.Plan()
	switch {
	case !soundPlan(&c.Plan):
		return Result{Code: Refused}
	case c.IfIndex != nil && *c.IfIndex != version:
		return Result{Code: Conflict, Version: version}
	case old != nil && equalPlans(old, &c.Plan):
		return Result{Version: version}
	}
	m.plan.Store(&plan{c.Plan, index})
	m.ring()
	return Result{Version: index, Changed: true}
}
