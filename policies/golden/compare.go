package golden

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// differences says, in sentences, where an answer is not the expected one.
func (w *Want) differences(got *Want) []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if w.Fault != got.Fault {
		add("fault %q, expected %q", got.Fault, w.Fault)
	}
	out = append(out, scores(w.Score, got.Score)...)
	if w.Pick != nil && (got.Pick == nil || *w.Pick != *got.Pick) {
		add("pick %s, expected %d", shown(got.Pick), *w.Pick)
	}
	if w.Action != "" && w.Action != got.Action {
		add("action %q, expected %q", got.Action, w.Action)
	}
	if w.Priority != nil && (got.Priority == nil || *w.Priority != *got.Priority) {
		add("priority %s, expected %d", shown(got.Priority), *w.Priority)
	}
	if w.Status != 0 && w.Status != got.Status {
		add("status %d, expected %d", got.Status, w.Status)
	}
	if w.Retry != nil && (got.Retry == nil || *w.Retry != *got.Retry) {
		add("retry after %s ms, expected %d", shown(got.Retry), *w.Retry)
	}
	if w.Desired != nil && !slices.Equal(w.Desired, got.Desired) {
		add("desired %v, expected %v", got.Desired, w.Desired)
	}
	if w.Reason != nil && !slices.Equal(w.Reason, got.Reason) {
		add("reason %v, expected %v", got.Reason, w.Reason)
	}
	out = append(out, entries("counter", w.Counters, got.Counters)...)
	out = append(out, entries("local state", w.State.Local, got.State.Local)...)
	return append(out, entries("replicated state", w.State.Replicated, got.State.Replicated)...)
}

// scores compares as the contract's f32, exactly.
func scores(want, got []*float64) []string {
	if want == nil {
		return nil
	}
	if len(want) != len(got) {
		return []string{fmt.Sprintf("%d scores, expected %d", len(got), len(want))}
	}
	var out []string
	for i := range want {
		a, b := want[i], got[i]
		if (a == nil) != (b == nil) || a != nil && float32(*a) != float32(*b) {
			out = append(out, fmt.Sprintf("score of row %d is %s, expected %s", i, shown(b), shown(a)))
		}
	}
	return out
}

func entries[V comparable](what string, want, got map[string]V) []string {
	var out []string
	for _, k := range slices.SortedFunc(maps.Keys(want), cmp.Compare[string]) {
		if v, ok := got[k]; !ok || v != want[k] {
			out = append(out, fmt.Sprintf("%s %q is %v, expected %v", what, k, v, want[k]))
		}
	}
	return out
}

func shown[V any](v *V) string {
	if v == nil {
		return "none"
	}
	return fmt.Sprint(*v)
}
