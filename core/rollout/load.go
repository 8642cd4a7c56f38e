package rollout

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/core/table"
)

// Rows are the versions by digest, the bindings by kind and model, and the states
// by policy: what a snapshot tells, in the order in which a [Loader] wants it back.
// Do not modify them.
func (t *Table) Rows() (versions []table.Row[*Version], bindings []table.Row[*Binding], states []table.Row[*State]) {
	return t.versions.Rows(), t.bindings.Rows(), t.states.Rows()
}

// Same reports whether no change of versions or bindings lies between t and other.
// Policies' states do not count.
func (t *Table) Same(other *Table) bool {
	return t.index == other.index && t.versions.Same(other.versions) && t.bindings.Same(other.bindings)
}

// Loader builds a table from what a snapshot tells: versions first, then bindings
// and states, each in the order of Rows. What no history of changes can give is
// refused; errors wrap ErrInvalid. The zero value is ready.
type Loader struct {
	t      Table
	last   *State // begun last
	policy string // its
}

// Version adds a version.
func (l *Loader) Version(v Version) error {
	if err := v.Validate(); err != nil {
		return err
	}
	next, inOrder := l.t.versions.Append(string(v.Digest[:]), &v)
	if !inOrder || v.Index == 0 || (v.Quarantined > 0) != (v.Reason != "") || len(v.Reason) > MaxReason ||
		v.Quarantined > 0 && v.Quarantined <= v.Index || l.t.bindings.Len() > 0 || l.t.states.Len() > 0 {
		return fmt.Errorf("%w: version %s out of place", ErrInvalid, v.Ref())
	}
	l.t.versions, l.t.bytes, l.t.index = next, l.t.bytes+v.Size, max(l.t.index, v.Index, v.Quarantined)
	return nil
}

// Binding adds a binding.
func (l *Loader) Binding(b Binding) error {
	none := b.Canary.Empty()
	if !(b.CanaryShare >= 0 && b.CanaryShare <= 1) || none != (b.CanaryShare == 0) || len(b.Previous) > MaxPrevious || b.Index == 0 {
		return fmt.Errorf("%w: %s", ErrInvalid, b.name())
	}
	for verb, stages := range stagesByVerb(b) {
		for _, stage := range stages {
			// What may be changed to that may also be.
			c := Change{Kind: b.Kind, Model: b.Model, Verb: Verb(verb + 1), Stage: stage}
			if stage.Empty() && c.Verb != VerbPromote {
				continue
			}
			if err := c.Validate(); err != nil {
				return err
			}
			// One that fails closed is bound in quarantine, too.
			stays := c.Verb == VerbPromote && stage.Equal(b.Active) && l.t.closed(stage)
			if err := l.t.sound(&c); err != nil && (!stays || !errors.Is(err, ErrQuarantined)) {
				return fmt.Errorf("%w: %w", ErrInvalid, err)
			}
		}
	}
	next, inOrder := l.t.bindings.Append(bindingKey(b.Kind, b.Model), &b)
	if !inOrder || next.Len() > MaxBindings {
		return fmt.Errorf("%w: %s out of place", ErrInvalid, b.name())
	}
	l.t.bindings, l.t.index = next, max(l.t.index, b.Index)
	return nil
}

// stagesByVerb is a binding's stages by the verb, less one, that puts them there.
func stagesByVerb(b Binding) [3][]Stage {
	return [3][]Stage{{b.Shadow}, {b.Canary}, append(slices.Clone(b.Previous), b.Active)}
}

// State begins a policy's state, whose last write was at index, or goes on with
// it. Its rows follow.
func (l *Loader) State(policy string, index uint64) error {
	if l.last != nil && l.policy == policy && l.last.index == index {
		return nil
	}
	s := &State{index: index}
	next, inOrder := l.t.states.Append(policy, s) // s is ours until Table
	if !inOrder || index == 0 || !l.t.hasPolicy(policy) {
		return fmt.Errorf("%w: state of %.80q out of place", ErrInvalid, policy)
	}
	l.t.states, l.last, l.policy = next, s, policy
	return nil
}

// StateRow adds a key to the state that was begun last.
func (l *Loader) StateRow(key string, value []byte) error {
	w := Write{Op: WriteSet, Key: key, Value: value}
	if err := w.validate(); err != nil {
		return err
	}
	if l.last == nil || !l.last.add(key, newValue(key, value)) || l.last.rows.Len() > MaxStateKeys {
		return fmt.Errorf("%w: key %.80q of a state out of place", ErrInvalid, key)
	}
	l.t.held += len(key) + len(value)
	return nil
}

// Empty reports whether nothing was loaded.
func (l *Loader) Empty() bool { return l.t.versions.Len()+l.t.bindings.Len()+l.t.states.Len() == 0 }

// Table is the table, whose last change was at index. The loader is of no use
// after it.
func (l *Loader) Table(index uint64) (*Table, error) {
	t := l.t
	if index < t.index || t.bytes > MaxModules || t.held > MaxStates {
		return nil, fmt.Errorf("%w: the table of index %d", ErrInvalid, index)
	}
	t.index = index
	versions := t.Versions()
	policies := 0
	for len(versions) > 0 {
		n := 1
		for n < len(versions) && versions[n].Policy == versions[0].Policy {
			n++
		}
		if policies++; policies > MaxPolicies || n > MaxVersions || !consistent(versions[:n]) {
			return nil, fmt.Errorf("%w: the versions of %s", ErrInvalid, versions[0].Policy)
		}
		versions = versions[n:]
	}
	return &t, nil
}

// consistent reports whether versions may be those of one policy.
func consistent(versions []Version) bool {
	for i := range versions {
		for j := range i {
			if versions[i].Kind != versions[j].Kind || versions[i].Release == versions[j].Release {
				return false
			}
		}
	}
	return true
}

// held is a value with its share of the state's sum.
type held struct {
	value []byte
	sum   uint64
}

func newValue(key string, value []byte) held {
	var h xxhash.Digest
	h.ResetWithSeed(uint64(len(key)))
	_, _ = h.WriteString(key) // never fails
	_, _ = h.Write(value)
	return held{value, h.Sum64()}
}

// add puts a row behind the others of a state that nobody has seen yet.
func (s *State) add(key string, v held) (inOrder bool) {
	s.rows, inOrder = s.rows.Append(key, v)
	s.bytes += len(key) + len(v.value)
	s.sum += v.sum
	return inOrder
}
