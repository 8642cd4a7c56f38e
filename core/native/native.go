package native

import (
	"fmt"
	"strings"
)

// Policy is what all of them have.
type Policy interface {
	// Name is the policy's name in configuration.
	Name() string
}

// tunable is a policy P with parameters.
type tunable[P Policy] interface {
	// Tune names the parameters and gives the policy with the values they have.
	Tune(*Params) P
}

// Named is the policy of that name among all, of which there are two at least, with
// parameters by name; those left out have their defaults. The error of another name
// lists all; use says what for: "routing".
func Named[P Policy](use, name string, params map[string]float64, all []P) (P, error) {
	var none P
	names := make([]string, len(all))
	for i, p := range all {
		if names[i] = p.Name(); names[i] == name {
			return with(p, params)
		}
	}
	last := len(names) - 1
	return none, fmt.Errorf("unknown %s policy %q: use %s or %s", use, name, strings.Join(names[:last], ", "), names[last])
}

// Read is the policy that text names, with its parameters: see [ParsePart]. It stands
// alone, so that its weight means nothing.
func Read[P Policy](use, text string, all []P) (P, error) {
	part, err := ParsePart(text)
	if err != nil {
		var none P
		return none, err
	}
	return Named(use, part.Name, part.Params, all)
}

// with is p with parameters.
func with[P Policy](p P, params map[string]float64) (P, error) {
	if len(params) == 0 {
		return p, nil
	}
	t, ok := any(p).(tunable[P])
	if !ok {
		return p, fmt.Errorf("%s takes no parameters", p.Name())
	}
	given := Params{policy: p.Name(), given: params}
	p = t.Tune(&given)
	return p, given.problem()
}

// ParamsOf are the parameters of a policy, in the order in which it names them.
func ParamsOf[P Policy](p P) []Param {
	t, ok := any(p).(tunable[P])
	if !ok {
		return nil
	}
	var asked Params
	t.Tune(&asked)
	return asked.known
}
