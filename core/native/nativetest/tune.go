// Package nativetest holds what packages say of their native policies' parameters to
// what the policies do.
package nativetest

import (
	"testing"

	"github.com/yardmaster/yardmaster/core/native"
)

// Tune fails unless, for each parameter of all the policies, a policy with its default
// does what one without it does, and at one of its bounds something else. with makes a
// new policy; what one does, in many situations, behave writes down.
func Tune[P native.Policy](t *testing.T, all []P, with func(name string, params map[string]float64) (P, error), behave func(P) string) {
	t.Helper()
	for _, p := range all {
		tuned := func(params map[string]float64) string {
			t.Helper()
			made, err := with(p.Name(), params)
			if err != nil {
				t.Fatal(err)
			}
			return behave(made)
		}
		usual := tuned(nil)
		for _, param := range native.ParamsOf(p) {
			at := func(v float64) string { return tuned(map[string]float64{param.Name: v}) }
			if at(param.Default) != usual {
				t.Errorf("%s: the default of %s is not %v", p.Name(), param.Name, param.Default)
			}
			if at(param.Least) == usual && at(param.Most) == usual {
				t.Errorf("%s: %s does nothing", p.Name(), param.Name)
			}
		}
	}
}
