package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/yardmaster/yardmaster/core/table"
)

// Table is all versions, bindings and policies' states. It is an immutable value;
// the zero value is empty. Methods that change something give the next table, or
// t itself with an error or where nothing changes.
type Table struct {
	index    uint64
	versions table.Table[*Version] // by digest
	bindings table.Table[*Binding] // by kind and model
	states   table.Table[*State]   // by policy
	bytes    int64                 // of all versions
	held     int                   // bytes of all states
}

// Index is the Raft index of the last change of versions or bindings. Policies'
// states do not count.
func (t *Table) Index() uint64 { return t.index }

// Version returns the version of a digest, and whether there is one.
func (t *Table) Version(d Digest) (Version, bool) {
	v, ok := t.versions.Get(string(d[:]))
	if !ok {
		return Version{}, false
	}
	return *v, true
}

// Versions lists all versions, by policy and in the order of their upload.
func (t *Table) Versions() []Version {
	out := make([]Version, 0, t.versions.Len())
	for _, row := range t.versions.Rows() {
		out = append(out, *row.Value)
	}
	slices.SortFunc(out, func(a, b Version) int { return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Index, b.Index)) })
	return out
}

// Find reads how people name a version: name@release, name for its newest that is
// in order, or six digits or more of its digest. Errors wrap ErrUnknown, or
// ErrQuarantined where a name has no version in order any more.
func (t *Table) Find(ref string) (Version, error) {
	v, _, err := t.find(ref)
	return v, err
}

// Look is Find for who only looks: a name without a version in order is its
// newest one out of service. Errors wrap ErrUnknown.
func (t *Table) Look(ref string) (Version, error) {
	v, out, err := t.find(ref)
	if err != nil && out != nil {
		return *out, nil
	}
	return v, err
}

// find finds a version. out is set with an error that wraps ErrQuarantined, and is what
// that is about.
func (t *Table) find(ref string) (v Version, out *Version, err error) {
	name, release, exact := strings.Cut(ref, "@")
	var found []Version
	for _, v := range t.Versions() {
		switch {
		case !exact && v.Policy == name && v.Quarantined > 0:
			out = &v
		case exact && v.Policy == name && (v.Release == release || len(release) >= minPrefix && strings.HasPrefix(v.Digest.String(), release)),
			!exact && v.Policy == name && v.Quarantined == 0,
			!exact && len(ref) >= minPrefix && strings.HasPrefix(v.Digest.String(), ref):
			found = append(found, v)
		}
	}
	switch {
	case len(found) == 0 && out != nil:
		return Version{}, out, fmt.Errorf("%w: %s (%s): push a new version, or name it with @ to delete it", ErrQuarantined, out.Ref(), out.Reason)
	case len(found) == 0:
		return Version{}, nil, fmt.Errorf("%w: no version %.80q; `yardmaster policy list` shows what there is", ErrUnknown, ref)
	case len(found) > 1 && found[0].Policy != found[len(found)-1].Policy:
		return Version{}, nil, fmt.Errorf("%w: %.80q may be %s or %s; give more digits", ErrUnknown, ref, found[0].Ref(), found[1].Ref())
	case len(found) > 1 && !exact && found[0].Policy != name:
		return Version{}, nil, fmt.Errorf("%w: %.80q may be %s or %s; give more digits", ErrUnknown, ref, found[0].Ref(), found[1].Ref())
	}
	return found[len(found)-1], nil, nil
}

// minPrefix is how many digits of a digest name a version.
const minPrefix = 6

// Binding returns the binding made for exactly this kind and model, and whether
// there is one; Resolve says what counts.
func (t *Table) Binding(k Kind, model string) (Binding, bool) {
	b, ok := t.bindings.Get(bindingKey(k, model))
	if !ok {
		return Binding{Kind: k, Model: model}, false
	}
	return *b, true
}

// Bindings lists all bindings, by kind and model.
func (t *Table) Bindings() []Binding {
	out := make([]Binding, 0, t.bindings.Len())
	for _, row := range t.bindings.Rows() {
		out = append(out, *row.Value)
	}
	return out
}

func bindingKey(k Kind, model string) string { return string(k) + "\x00" + model }

// Put adds a version. Putting it again changes nothing. Errors wrap ErrInvalid,
// ErrExists, ErrQuarantined or ErrFull.
func (t *Table) Put(v Version, index uint64) (*Table, error) {
	if err := v.Validate(); err != nil {
		return t, err
	}
	if old, ok := t.Version(v.Digest); ok {
		return t, again(&old, &v)
	}
	policies, versions, err := t.census(&v)
	switch {
	case err != nil:
		return t, err
	case versions == 0 && policies >= MaxPolicies:
		return t, fmt.Errorf("%w: there are %d policies; delete one first", ErrFull, policies)
	case versions >= MaxVersions:
		return t, fmt.Errorf("%w: %s has %d versions; delete old ones first", ErrFull, v.Policy, versions)
	case t.bytes+v.Size > MaxModules:
		return t, fmt.Errorf("%w: all modules together may have %d MiB; delete old versions first", ErrFull, MaxModules>>20)
	}
	v.Index, v.Quarantined, v.Reason = index, 0, ""
	next := *t
	next.index, next.bytes = index, t.bytes+v.Size
	next.versions = t.versions.With(string(v.Digest[:]), &v)
	return &next, nil
}

// again is what putting a version gets whose bytes are there already.
func again(old, v *Version) error {
	switch {
	case old.Policy != v.Policy || old.Release != v.Release || old.Kind != v.Kind || old.Size != v.Size || old.FailClosed != v.FailClosed:
		return fmt.Errorf("%w: these bytes are %s, of kind %s", ErrExists, old.Ref(), old.Kind)
	case old.Quarantined > 0:
		return fmt.Errorf("%w: %s: %s; push a corrected version, or delete this one before pushing it again", ErrQuarantined, old.Ref(), old.Reason)
	}
	return nil
}

// census counts policies and the versions of v's, and says what stands in v's way.
func (t *Table) census(v *Version) (policies, versions int, err error) {
	names := make([]string, 0, t.versions.Len())
	for _, row := range t.versions.Rows() {
		old := row.Value
		names = append(names, old.Policy)
		if old.Policy != v.Policy {
			continue
		}
		versions++
		switch {
		case old.Kind != v.Kind:
			return 0, 0, fmt.Errorf("%w: %s is of kind %s; give the %s another name", ErrExists, v.Policy, old.Kind, v.Kind)
		case old.Release == v.Release:
			return 0, 0, fmt.Errorf("%w: %s is there with other bytes (digest %s); raise the version in the manifest", ErrExists, v.Ref(), old.Digest.Short())
		}
	}
	slices.Sort(names)
	return len(slices.Compact(names)), versions, nil
}

// Delete removes a version that is bound nowhere, also from what bindings can go
// back to, and with a policy's last version its state. One that does not exist is
// no fault. Errors wrap ErrBound.
func (t *Table) Delete(d Digest, index uint64) (*Table, error) {
	v, ok := t.Version(d)
	if !ok {
		return t, nil
	}
	for _, row := range t.bindings.Rows() {
		if row.Value.Uses(d) {
			return t, fmt.Errorf("%w: %s is bound as %s; promote another, or roll back, first", ErrBound, v.Ref(), row.Value.name())
		}
	}
	next := *t
	next.index, next.bytes = index, t.bytes-v.Size
	next.versions = t.versions.Without(string(d[:]))
	next.bindings = t.withoutVersion(d, index)
	if _, versions, _ := next.census(&Version{Policy: v.Policy, Kind: v.Kind}); versions == 0 {
		next.drop(v.Policy)
	}
	return &next, nil
}

// withoutVersion is the bindings without a version.
func (t *Table) withoutVersion(d Digest, index uint64) table.Table[*Binding] {
	return t.bindings.Edit(func(_ string, old *Binding) *Binding {
		b := old.without(d, t.closed(old.Active))
		if b.equal(old) {
			return old
		}
		b.Index = index
		return &b
	})
}

// closed reports whether a part of the stage fails closed.
func (t *Table) closed(s Stage) bool {
	return slices.ContainsFunc(s.Parts, func(p Part) bool {
		v, ok := t.Version(p.Version)
		return ok && v.FailClosed
	})
}

// Quarantine takes a version out of service: every binding that uses it goes back
// to its newest stage that does not, pinned or not. An active stage with a part
// that fails closed stays, for as long as nobody changes it: what lies behind it
// may let through what it is there to keep out. Doing it again changes nothing.
// Errors wrap ErrUnknown or ErrInvalid.
func (t *Table) Quarantine(d Digest, reason string, index uint64) (*Table, error) {
	v, ok := t.Version(d)
	switch {
	case reason == "" || len(reason) > MaxReason:
		return t, fmt.Errorf("%w: a quarantine needs a reason of up to %d bytes", ErrInvalid, MaxReason)
	case !ok:
		return t, fmt.Errorf("%w: no version has digest %s", ErrUnknown, d.Short())
	case v.Quarantined > 0:
		return t, nil
	}
	v.Quarantined, v.Reason = index, reason
	next := *t
	next.index = index
	next.versions = t.versions.With(string(d[:]), &v)
	next.bindings = t.withoutVersion(d, index)
	return &next, nil
}

// Change carries out a verb. One that leaves the binding as it is changes nothing.
// Errors wrap ErrInvalid, ErrUnknown, ErrQuarantined, ErrPinned, ErrConflict,
// ErrNothing or ErrFull.
func (t *Table) Change(c Change, index uint64) (*Table, error) {
	if err := c.Validate(); err != nil {
		return t, err
	}
	old, exists := t.Binding(c.Kind, c.Model)
	if c.IfIndex != nil && *c.IfIndex != old.Index {
		return t, fmt.Errorf("%w: %s is at index %d, not %d; look at it again", ErrConflict, old.name(), old.Index, *c.IfIndex)
	}
	if err := t.sound(&c); err != nil {
		return t, err
	}
	now, err := c.on(old)
	now.Previous = t.inOrder(now.Previous)
	key := bindingKey(c.Kind, c.Model)
	switch {
	case err != nil:
		return t, err
	case !exists && (c.Verb == VerbPin || c.Verb == VerbUnpin || c.Verb == VerbClear):
		return t, fmt.Errorf("%w: nothing is bound for %s", ErrUnknown, old.name())
	case c.Verb == VerbClear:
		next := *t
		next.index, next.bindings = index, t.bindings.Without(key)
		return &next, nil
	case now.equal(&old):
		return t, nil
	case !exists && t.bindings.Len() >= MaxBindings:
		return t, fmt.Errorf("%w: there are %d bindings; clear one first", ErrFull, MaxBindings)
	}
	now.Index = index
	next := *t
	next.index, next.bindings = index, t.bindings.With(key, &now)
	return &next, nil
}

// inOrder is the stages without those that cannot be gone back to: what a change
// replaces may be in quarantine.
func (t *Table) inOrder(stages []Stage) []Stage {
	return slices.DeleteFunc(slices.Clone(stages), func(s Stage) bool {
		return slices.ContainsFunc(s.Parts, func(p Part) bool {
			v, ok := t.Version(p.Version)
			return ok && v.Quarantined > 0
		})
	})
}

// sound reports which part of the change's stage cannot be bound.
func (t *Table) sound(c *Change) error {
	for i := range c.Stage.Parts {
		p := &c.Stage.Parts[i]
		if p.Native() {
			continue
		}
		v, ok := t.Version(p.Version)
		switch {
		case !ok || v.Policy != p.Policy:
			return fmt.Errorf("%w: no version of %s has digest %s; push it first", ErrUnknown, p.Policy, p.Version.Short())
		case v.Kind != c.Kind:
			return fmt.Errorf("%w: %s is of kind %s and cannot be bound as %s", ErrInvalid, v.Ref(), v.Kind, c.Kind)
		case v.Quarantined > 0:
			return fmt.Errorf("%w: %s: %s; push a corrected version", ErrQuarantined, v.Ref(), v.Reason)
		}
	}
	return nil
}
