package vet

import (
	"fmt"
	"slices"
	"strings"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/policies/abi"
)

// CheckFallback refuses a manifest whose fallback is no policy of the binary, of its
// kind: such a policy could be bound and never get ready. Errors wrap [abi.ErrManifest].
func CheckFallback(m *abi.Manifest) error {
	if m.Fallback == "" {
		return nil
	}
	names := natives(m.Kind)
	switch {
	case slices.Contains(names, m.Fallback):
		return nil
	case len(names) == 0:
		return fmt.Errorf("%w: fallback %q: there is no policy of kind %s in the binary; leave fallback out", abi.ErrManifest, m.Fallback, m.Kind)
	}
	return fmt.Errorf("%w: fallback %q is no policy of kind %s of the binary; there are %s", abi.ErrManifest, m.Fallback, m.Kind, strings.Join(names, ", "))
}

// natives are the names of the binary's policies of a kind.
func natives(k abi.Kind) (names []string) {
	switch k {
	case abi.Router:
		for _, p := range route.Policies() {
			names = append(names, p.Name())
		}
	case abi.Admission:
		for _, p := range admit.Policies() {
			names = append(names, p.Name())
		}
	case abi.Autoscaler:
		for _, p := range scale.Policies() {
			names = append(names, p.Name())
		}
	case abi.Observer:
	}
	return names
}
