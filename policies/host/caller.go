package host

import (
	"fmt"

	"github.com/yardmaster/yardmaster/policies/abi"
)

// caller is what all who ask a guest have in common.
type caller struct {
	policy *Policy
	name   string
	tally  tally
}

// callerOf is one of a policy of that kind. Errors wrap [ErrRefused].
func (p *Policy) callerOf(kind abi.Kind) (*caller, error) {
	m := p.manifest
	if m.Kind != kind {
		return nil, fmt.Errorf("%w: %s is of kind %s, not %s", ErrRefused, m.Name, m.Kind, kind)
	}
	return &caller{policy: p, name: m.Name + "@" + m.Version}, nil
}

// Name is the policy's name and version.
func (c *caller) Name() string { return c.name }

// Counts is what became of all calls so far.
func (c *caller) Counts() Counts { return c.tally.counts() }

// columnsOf finds in known what each column of the manifest is read by: the zero value
// where an optional one is not there, and no bit of found. The error of one that is
// not optional wraps [ErrColumn]; lacking says what is amiss.
func columnsOf[C any](m *abi.Manifest, known map[string]C, lacking string) (columns []C, found uint64, err error) {
	for i, c := range m.Columns {
		column, ok := known[c.Name]
		if !ok && !c.Optional {
			return nil, 0, fmt.Errorf("%w: %s needs %q, which %s; make it optional", ErrColumn, m.Name, c.Name, lacking)
		}
		if ok {
			found |= 1 << i
		}
		columns = append(columns, column)
	}
	return columns, found, nil
}
