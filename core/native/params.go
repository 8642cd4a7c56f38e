package native

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Param is a parameter of a policy: a number from Least to Most.
type Param struct {
	Name                 string
	Default, Least, Most float64
	Help                 string // with the unit
	whole                bool
}

// Params are the parameters of one policy with the values that were given. A policy
// that is asked to tune itself calls a method for each.
type Params struct {
	policy string
	given  map[string]float64
	known  []Param
	wrong  error // of the first value that is out of bounds
}

// Number writes a parameter's value.
func (s *Params) Number(place *float64, p Param) { *place = s.value(&p) }

// Seconds writes the value of a parameter whose unit is a second.
func (s *Params) Seconds(place *time.Duration, p Param) {
	*place = time.Duration(math.Round(s.value(&p) * float64(time.Second)))
}

// Count writes the value of a parameter that has no fractions.
func (s *Params) Count(place *int, p Param) {
	p.whole = true
	*place = int(s.value(&p))
}

// value is what was given for p, or its default.
func (s *Params) value(p *Param) float64 {
	s.known = append(s.known, *p)
	v, ok := s.given[p.Name]
	if !ok {
		return p.Default
	}
	if s.wrong == nil {
		s.wrong = p.check(s.policy, v)
	}
	return v
}

func (p *Param) check(policy string, v float64) error {
	switch {
	case !(v >= p.Least && v <= p.Most):
		return fmt.Errorf("%s of %s is from %v to %v, not %v", p.Name, policy, p.Least, p.Most, v)
	case p.whole && v != math.Trunc(v):
		return fmt.Errorf("%s of %s is a whole number, not %v", p.Name, policy, v)
	}
	return nil
}

// problem is what is wrong with what was given, after the policy has asked for all.
func (s *Params) problem() error {
	names := make([]string, len(s.known))
	for i := range s.known {
		names[i] = s.known[i].Name
	}
	for _, name := range slices.Sorted(maps.Keys(s.given)) {
		if !slices.Contains(names, name) {
			return fmt.Errorf("%s has no parameter %q; it has %s", s.policy, name, strings.Join(names, ", "))
		}
	}
	return s.wrong
}
