package rollout

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Bounds of stages and bindings; see those of versions.
const (
	MaxParts    = 8  // of a stage
	MaxParams   = 64 // of a part, and twice as many of a stage
	MaxBindings = 256
	MaxPrevious = 8 // stages that a binding can go back to
	MaxModel    = 512
	MaxWeight   = 1e6
)

// Part is one policy of a stage.
type Part struct {
	Policy  string  // name; of a native one where Version is zero
	Version Digest  // zero: built into the binary
	Weight  float64 // of its scores among the stage's, above 0; 1 where there is nothing to weigh
	Params  []Param // by name; what is missing has its default; do not modify
}

// Param is one parameter's value.
type Param struct {
	Name  string
	Value float64
}

// NewPart is a part with its parameters in order.
func NewPart(policy string, version Digest, weight float64, params ...Param) Part {
	params = slices.Clone(params)
	slices.SortFunc(params, func(a, b Param) int { return cmp.Compare(a.Name, b.Name) })
	return Part{Policy: policy, Version: version, Weight: weight, Params: params}
}

// Native reports whether the part is built into the binary.
func (p *Part) Native() bool { return p.Version.IsZero() }

// ParamsByName are the values that the part gives, nil for none.
func (p *Part) ParamsByName() map[string]float64 {
	if len(p.Params) == 0 {
		return nil
	}
	out := make(map[string]float64, len(p.Params))
	for _, param := range p.Params {
		out[param.Name] = param.Value
	}
	return out
}

func (p *Part) equal(q *Part) bool {
	return p.Policy == q.Policy && p.Version == q.Version && p.Weight == q.Weight && slices.Equal(p.Params, q.Params)
}

// Stage is policies that decide together, in this order. Without parts it stands
// for none.
type Stage struct{ Parts []Part }

// NativeStage is a stage of one built-in policy.
func NativeStage(policy string, params ...Param) Stage {
	return Stage{[]Part{NewPart(policy, Digest{}, 1, params...)}}
}

// Empty reports whether the stage stands for none.
func (s Stage) Empty() bool { return len(s.Parts) == 0 }

// Equal reports whether both decide alike.
func (s Stage) Equal(o Stage) bool {
	return slices.EqualFunc(s.Parts, o.Parts, func(p, q Part) bool { return p.equal(&q) })
}

// Uses reports whether a part is of the version.
func (s Stage) Uses(d Digest) bool {
	return slices.ContainsFunc(s.Parts, func(p Part) bool { return !d.IsZero() && p.Version == d })
}

// String lists the parts, for people: native policies by name, others with the
// first digits of their digest.
func (s Stage) String() string {
	if s.Empty() {
		return "none"
	}
	names := make([]string, len(s.Parts))
	for i := range s.Parts {
		p := &s.Parts[i]
		if len(s.Parts) > 1 {
			names[i] = fmt.Sprintf("%g×", p.Weight)
		}
		names[i] += p.Policy
		if !p.Native() {
			names[i] += "@" + p.Version.Short()
		}
	}
	return strings.Join(names, " + ")
}

// validate reports what is wrong with a stage for a kind, whatever the table.
func (s Stage) validate(k Kind) error {
	switch n := len(s.Parts); {
	case n > MaxParts:
		return fmt.Errorf("%w: a stage of %d policies; it may have up to %d", ErrInvalid, n, MaxParts)
	case n > 1 && k == Autoscaler:
		return fmt.Errorf("%w: %d autoscalers for the same pools: their answers cannot be added up; bind one", ErrInvalid, n)
	}
	params := 0
	for i := range s.Parts {
		p := &s.Parts[i]
		if params += len(p.Params); params > 2*MaxParams {
			return fmt.Errorf("%w: a stage of %d parameters; all its policies together may have %d", ErrInvalid, params, 2*MaxParams)
		}
		if err := p.validate(); err != nil {
			return err
		}
		for j := range i {
			if q := &s.Parts[j]; q.Policy == p.Policy && q.Version == p.Version {
				return fmt.Errorf("%w: %s is named twice in a stage; give it one weight", ErrInvalid, p.Policy)
			}
		}
	}
	return nil
}

func (p *Part) validate() error {
	switch {
	case p.Policy == "" || len(p.Policy) > MaxName:
		return fmt.Errorf("%w: a policy's name is empty or longer than %d bytes", ErrInvalid, MaxName)
	case !(p.Weight > 0) || p.Weight > MaxWeight: // also NaN
		return fmt.Errorf("%w: the weight of %s is %v; it is above 0 and up to %g", ErrInvalid, p.Policy, p.Weight, float64(MaxWeight))
	case len(p.Params) > MaxParams:
		return fmt.Errorf("%w: %s has %d parameters; it may have up to %d", ErrInvalid, p.Policy, len(p.Params), MaxParams)
	}
	for i, q := range p.Params {
		switch {
		case q.Name == "" || len(q.Name) > MaxName:
			return fmt.Errorf("%w: a parameter's name of %s is empty or longer than %d bytes", ErrInvalid, p.Policy, MaxName)
		case math.IsNaN(q.Value) || math.IsInf(q.Value, 0):
			return fmt.Errorf("%w: parameter %s of %s is no number", ErrInvalid, q.Name, p.Policy)
		case i > 0 && p.Params[i-1].Name >= q.Name:
			return fmt.Errorf("%w: the parameters of %s are not in order, or %s is given twice", ErrInvalid, p.Policy, q.Name)
		}
	}
	return nil
}
