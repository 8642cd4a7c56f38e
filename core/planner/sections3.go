package planner

import (
	"fmt"

	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/table"
	"github.com/yardmaster/yardmaster/core/wire/control"
)

// writeLevel3 writes what came with feature level 3. Where there is nothing of
// it, its sections are absent.
func (s *Snapshot) writeLevel3(sw *sectionWriter) {
	versions, bindings, states := s.rollout.Rows()
	for rest := versions; len(rest) > 0; {
		var m control.PoliciesSection
		m.Versions, rest = nextRun(rest, func(_ string, v *rollout.Version) *control.PolicyVersion { return fromVersion(v) })
		sw.message(sectionPolicies, &m)
	}
	for rest := bindings; len(rest) > 0; {
		var m control.BindingsSection
		m.Bindings, rest = nextRun(rest, fromBinding)
		sw.message(sectionBindings, &m)
	}
	for _, row := range states {
		writeState(sw, row.Key, row.Value)
	}
	if s.rollout.Index() == 0 && s.plan == nil {
		return
	}
	m := &control.RolloutSection{Index: s.rollout.Index()}
	if s.plan != nil {
		m.Plan, m.PlanIndex = fromPlan(&s.plan.Plan), s.plan.index
	}
	sw.message(sectionRollout, m)
}

func writeState(sw *sectionWriter, policy string, state *rollout.State) {
	rows := make([]table.Row[[]byte], 0, state.Len())
	for key, value := range state.All() {
		rows = append(rows, table.Row[[]byte]{Key: key, Value: value})
	}
	if len(rows) == 0 { // all its keys were deleted
		sw.message(sectionPolicyState, &control.PolicyStateSection{Policy: policy, Index: state.Index()})
	}
	for rest := rows; len(rest) > 0; {
		m := control.PolicyStateSection{Policy: policy, Index: state.Index()}
		m.Rows, rest = nextRun(rest, func(key string, value []byte) *control.PolicyStateRow {
			return &control.PolicyStateRow{Key: []byte(key), Value: value}
		})
		sw.message(sectionPolicyState, &m)
	}
}

func fromBinding(_ string, b *rollout.Binding) *control.PolicyBinding {
	m := &control.PolicyBinding{
		Kind: string(b.Kind), Model: b.Model, Active: fromStage(b.Active), Shadow: fromStage(b.Shadow), Canary: fromStage(b.Canary),
		CanaryShare: b.CanaryShare, Pinned: b.Pinned, Index: b.Index,
	}
	for _, s := range b.Previous {
		stage := fromStage(s)
		if stage == nil {
			stage = &control.PolicyStage{} // none, and yet a place in the list
		}
		m.Previous = append(m.Previous, stage)
	}
	return m
}

func toBinding(m *control.PolicyBinding) (rollout.Binding, error) {
	b := rollout.Binding{
		Kind: rollout.Kind(m.GetKind()), Model: m.GetModel(), CanaryShare: m.GetCanaryShare(), Pinned: m.GetPinned(), Index: m.GetIndex(),
	}
	for _, s := range []struct {
		to   *rollout.Stage
		from *control.PolicyStage
	}{{&b.Active, m.GetActive()}, {&b.Shadow, m.GetShadow()}, {&b.Canary, m.GetCanary()}} {
		var err error
		if *s.to, err = toStage(s.from); err != nil {
			return b, err
		}
	}
	for _, pb := range m.GetPrevious() {
		stage, err := toStage(pb)
		if err != nil {
			return b, err
		}
		b.Previous = append(b.Previous, stage)
	}
	return b, nil
}

// level3 reads a section of feature level 3.
func (l *loader) level3(t sectionType, payload []byte) error {
	if l.meta.featureLevel < 3 || l.rolledOut {
		return fmt.Errorf("%w: section %d at feature level %d", ErrMalformed, t, l.meta.featureLevel)
	}
	switch t {
	case sectionPolicies:
		return l.addPolicies(payload)
	case sectionBindings:
		return l.addBindings(payload)
	case sectionPolicyState:
		return l.addPolicyState(payload)
	default:
		return l.closeRollout(payload)
	}
}

func (l *loader) addPolicies(payload []byte) error {
	var m control.PoliciesSection
	if err := unmarshal(payload, &m); err != nil {
		return err
	}
	for _, pb := range m.GetVersions() {
		v, err := toVersion(pb)
		if err != nil {
			return err
		}
		if err := l.policies.Version(v); err != nil {
			return fmt.Errorf("%w: %w", ErrMalformed, err)
		}
	}
	return nil
}

func (l *loader) addBindings(payload []byte) error {
	var m control.BindingsSection
	if err := unmarshal(payload, &m); err != nil {
		return err
	}
	for _, pb := range m.GetBindings() {
		b, err := toBinding(pb)
		if err != nil {
			return err
		}
		if err := l.policies.Binding(b); err != nil {
			return fmt.Errorf("%w: %w", ErrMalformed, err)
		}
	}
	return nil
}

func (l *loader) addPolicyState(payload []byte) error {
	var m control.PolicyStateSection
	if err := unmarshal(payload, &m); err != nil {
		return err
	}
	if m.GetIndex() > l.applied {
		return fmt.Errorf("%w: state of policy %q at index %d", ErrMalformed, m.GetPolicy(), m.GetIndex())
	}
	if err := l.policies.State(m.GetPolicy(), m.GetIndex()); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	for _, pb := range m.GetRows() {
		if err := l.policies.StateRow(string(pb.GetKey()), pb.GetValue()); err != nil {
			return fmt.Errorf("%w: %w", ErrMalformed, err)
		}
	}
	return nil
}

// closeRollout ends what is told of policies, and reads the plan.
func (l *loader) closeRollout(payload []byte) error {
	var m control.RolloutSection
	if err := unmarshal(payload, &m); err != nil {
		return err
	}
	t, err := l.policies.Table(m.GetIndex())
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	p, err := toPlan(m.GetPlan())
	if err != nil {
		return err
	}
	if m.GetIndex() > l.applied || m.GetPlanIndex() > l.applied || !soundPlan(&p) || (m.GetPlan() == nil) != (m.GetPlanIndex() == 0) {
		return fmt.Errorf("%w: policies at index %d, plan at index %d", ErrMalformed, m.GetIndex(), m.GetPlanIndex())
	}
	if l.rollout, l.rolledOut = t, true; m.GetPlan() != nil {
		l.plan = &plan{p, m.GetPlanIndex()}
	}
	return nil
}
