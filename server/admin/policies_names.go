package admin

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/native"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/scale"
)

// meant is the kind that a verb without policies can only be for: the one whose
// binding it would change. Where there is none it is router, whose refusal says what is
// missing; between two it does not choose. Errors wrap ErrInvalid.
func meant(t *rollout.Table, verb rollout.Verb, model string, share float64) (rollout.Kind, error) {
	var fit, there []string
	for _, b := range t.Bindings() {
		if b.Model != model {
			continue
		}
		there = append(there, string(b.Kind))
		if moves(&b, verb, share) {
			fit = append(fit, string(b.Kind))
		}
	}
	if len(fit) == 0 {
		fit = there // so that the refusal is about what is bound
	}
	switch {
	case len(fit) == 1:
		return rollout.Kind(fit[0]), nil
	case len(fit) == 0:
		return rollout.Router, nil
	}
	return "", fmt.Errorf("%w: %v may mean the %s; say which: --kind %s", ErrInvalid, verb, strings.Join(fit, " or the "), strings.Join(fit, " or --kind "))
}

// moves reports whether a verb without policies has something to do at a binding.
func moves(b *rollout.Binding, verb rollout.Verb, share float64) bool {
	tried := !b.Canary.Empty()
	switch verb {
	case rollout.VerbShadow:
		return !b.Shadow.Empty()
	case rollout.VerbCanary:
		return tried || share > 0 && !b.Shadow.Empty()
	case rollout.VerbPromote:
		return tried || !b.Shadow.Empty()
	case rollout.VerbRollback:
		return tried || len(b.Previous) > 0
	case rollout.VerbPin:
		return !b.Pinned
	case rollout.VerbUnpin:
		return b.Pinned
	case rollout.VerbClear:
		return true
	}
	return false
}

// binaryKind is the policies of the binary of one kind.
type binaryKind struct {
	kind  rollout.Kind
	names []string
	// with makes one, as a trial, and says which parameters it has.
	with func(name string, params map[string]float64) ([]native.Param, error)
}

func binaryKindOf[P native.Policy](kind rollout.Kind, all []P, with func(string, map[string]float64) (P, error)) binaryKind {
	k := binaryKind{kind: kind, with: func(name string, params map[string]float64) ([]native.Param, error) {
		p, err := with(name, params)
		if err != nil {
			return nil, err
		}
		return native.ParamsOf(p), nil
	}}
	for _, p := range all {
		k.names = append(k.names, p.Name())
	}
	return k
}

var binaryKinds = []binaryKind{
	binaryKindOf(rollout.Router, route.Policies(), route.PolicyWith),
	binaryKindOf(rollout.Admission, admit.Policies(), admit.PolicyWith),
	binaryKindOf(rollout.Autoscaler, scale.Policies(), scale.PolicyWith),
}

// nativeKind is the kind of a policy of the binary, nil if there is none of that name.
// Several kinds may have it; kind, where it is known, says which is meant.
func nativeKind(name string, kind rollout.Kind) *binaryKind {
	for i := range binaryKinds {
		if k := &binaryKinds[i]; (kind == "" || kind == k.kind) && slices.Contains(k.names, name) {
			return k
		}
	}
	return nil
}

// about says what there is to say of a policy of the binary.
func (k *binaryKind) about(name string) string {
	out := fmt.Sprintf("%s is a policy of the binary, of kind %s: it has no versions, and is always there", name, k.kind)
	params, _ := k.with(name, nil) // it has the name
	var all []string
	for _, p := range params {
		all = append(all, fmt.Sprintf("%s (%v)", p.Name, p.Default))
	}
	if len(all) == 0 {
		return out
	}
	return out + "; its parameters are " + strings.Join(all, ", ")
}

// natives are the names of the binary's policies of a kind, of all where it is empty.
func natives(kind rollout.Kind) []string {
	var out []string
	for i := range binaryKinds {
		if k := &binaryKinds[i]; kind == "" || kind == k.kind {
			out = append(out, k.names...)
		}
	}
	return out
}

// uploaded are the names of the uploaded policies of a kind, of all where it is empty.
func uploaded(t *rollout.Table, kind rollout.Kind) []string {
	var out []string
	for _, v := range t.Versions() {
		if kind == "" || v.Kind == kind {
			out = append(out, v.Policy)
		}
	}
	return out
}

// hinted adds to an unknown name those that are hardly different.
func hinted(err error, name string, known []string) error {
	name, _, _ = strings.Cut(name, "@")
	if !errors.Is(err, rollout.ErrUnknown) || len(name) > 64 {
		return err
	}
	var near []string
	for _, k := range known {
		if d := distance(name, k); d > 0 && d <= min(2, len(k)/3) {
			near = append(near, k)
		}
	}
	slices.Sort(near)
	if near = slices.Compact(near); len(near) == 0 {
		return err
	}
	return fmt.Errorf("%w; did you mean %s?", err, strings.Join(near, " or "))
}

// distance is how many letters have to be put in, taken out or changed to make a of b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			changed := diagonal
			if a[i] != b[j] {
				changed++
			}
			diagonal = row[j+1]
			row[j+1] = min(changed, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// of adds to a binding what this node makes of it.
func (h PoliciesHere) of(b PolicyBinding) PolicyBinding {
	b.Configured = h.Configured[b.Kind]
	for _, late := range h.Late {
		if late.Kind == b.Kind && late.Model == b.Model {
			b.Late = late.Why
		}
	}
	for _, r := range h.Refusing {
		if r.Kind == b.Kind && r.Model == b.Model {
			b.Refuses = r.Policy
		}
	}
	return b
}
