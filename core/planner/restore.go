package planner

import (
	"fmt"
	"io"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/quota"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/table"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/core/wire/control"
	"github.com/yardmaster/yardmaster/core/wire/section"
)

// Restore replaces the state by the snapshot in r, all of it or, on an error,
// nothing. A snapshot of a feature level that this binary does not know is
// refused. Errors wrap ErrMalformed or ErrUnknownEntry.
func (m *Machine) Restore(r io.Reader) error {
	l := loader{maxLevel: m.maxLevel, rollout: &rollout.Table{}}
	if err := l.read(r); err != nil {
		return err
	}
	m.applied = l.applied
	m.seen = l.seen
	m.meta.Store(&l.meta)
	m.view.Store(fleet.NewView(l.viewIndex, l.workers))
	m.registers.Store(&l.registers)
	m.quotas.Store(&l.quotas)
	m.members.Store(&l.members)
	m.rollout.Store(l.rollout)
	m.plan.Store(l.plan)
	m.ring()
	return nil
}

// loader collects the sections of one snapshot.
type loader struct {
	maxLevel uint32

	meta      meta
	applied   uint64
	viewIndex uint64
	workers   []fleet.Worker
	seen      window
	registers table.Table[*register]
	quotas    quota.Ledger
	members   table.Table[*Member]
	policies  rollout.Loader // until the rollout section
	rollout   *rollout.Table
	plan      *plan
	rolledOut bool
	headSeen  bool
}

func (l *loader) read(r io.Reader) error {
	in, err := openSections(r)
	if err != nil {
		return err
	}
	for {
		t, payload, err := nextSection(in, l.maxLevel)
		if err != nil {
			return err
		}
		if t == sectionEnd && l.headSeen {
			return l.end(payload, in)
		}
		if err := l.section(t, payload); err != nil {
			return err
		}
	}
}

func (l *loader) section(t sectionType, payload []byte) error {
	if !l.headSeen && t != sectionHead && t&sectionIgnorable == 0 {
		return fmt.Errorf("%w: section %d before the head", ErrMalformed, t)
	}
	switch t {
	case sectionHead:
		return l.head(payload)
	case sectionWorkers:
		return l.addWorkers(payload)
	case sectionWindow:
		return l.addWindow(payload)
	case sectionRegisters, sectionQuotas, sectionMembers:
		return l.level2(t, payload)
	case sectionPolicies, sectionBindings, sectionPolicyState, sectionRollout:
		return l.level3(t, payload)
	case sectionEnd, sectionIgnorable: // not after the head; the bit alone is no type
	}
	if t&sectionIgnorable != 0 {
		return nil
	}
	return fmt.Errorf("section %d: %w", t, ErrUnknownEntry)
}

func (l *loader) head(payload []byte) error {
	var m control.HeadSection
	if err := unmarshal(payload, &m); err != nil {
		return err
	}
	if l.headSeen || m.GetViewIndex() > m.GetApplied() {
		return fmt.Errorf("%w: head section", ErrMalformed)
	}
	if m.GetFeatureLevel() > l.maxLevel {
		return fmt.Errorf("snapshot of feature level %d: %w", m.GetFeatureLevel(), ErrUnknownEntry)
	}
	l.headSeen = true
	l.meta = meta{clusterID: m.GetClusterId(), featureLevel: m.GetFeatureLevel()}
	l.applied, l.viewIndex = m.GetApplied(), m.GetViewIndex()
	return nil
}

func (l *loader) addWorkers(payload []byte) error {
	var m control.WorkersSection
	if err := unmarshal(payload, &m); err != nil {
		return err
	}
	for _, pb := range m.GetWorkers() {
		w, err := control.ToWorker(pb)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrMalformed, err)
		}
		inOrder := len(l.workers) == 0 || l.workers[len(l.workers)-1].ID < w.ID
		if w.ID == "" || w.Epoch == 0 || uint64(w.Epoch) > l.viewIndex || !inOrder || len(l.workers) >= MaxWorkers {
			return fmt.Errorf("%w: worker %q of epoch %d", ErrMalformed, w.ID, w.Epoch)
		}
		l.workers = append(l.workers, w)
	}
	return nil
}

func (l *loader) addWindow(payload []byte) error {
	var m control.WindowSection
	if err := unmarshal(payload, &m); err != nil {
		return err
	}
	for _, pb := range m.GetRequests() {
		if len(pb.GetId()) != len(RequestID{}) || pb.GetCode() > uint32(^Code(0)) {
			return fmt.Errorf("%w: remembered request %x", ErrMalformed, pb.GetId())
		}
		id := RequestID(pb.GetId())
		if _, twice := l.seen.find(id); twice || id == (RequestID{}) || len(l.seen.ring) >= windowSize {
			return fmt.Errorf("%w: remembered request %v", ErrMalformed, id)
		}
		l.seen.add(id, Result{
			Index: pb.GetIndex(), Code: Code(pb.GetCode()), Epoch: fleet.Epoch(pb.GetEpoch()), Changed: pb.GetChanged(),
			Version: pb.GetVersion(), Granted: unit.Tokens(pb.GetGranted()),
		})
	}
	return nil
}

func (l *loader) end(payload []byte, in *section.Reader) error {
	var m control.EndSection
	if err := unmarshal(payload, &m); err != nil {
		return err
	}
	if !l.rolledOut && !l.policies.Empty() {
		return fmt.Errorf("%w: what is told of policies has no end", ErrMalformed)
	}
	if n := in.Count() - 1; m.GetSections() != n {
		return fmt.Errorf("%w: %d sections of %d", ErrMalformed, n, m.GetSections())
	}
	if err := in.End(); err != nil {
		return fmt.Errorf("%w: snapshot: %w", ErrMalformed, err)
	}
	return nil
}
