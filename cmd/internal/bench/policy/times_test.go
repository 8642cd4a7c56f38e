package policy

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/yardmaster/yardmaster/policies/abi/abitest"
)

// Policies of each kind are measured, with nothing asked of their formulas.
func TestMeasure(t *testing.T) {
	const examples = "../../../../plugins-sdk/examples"
	for name, native := range map[string]string{"least-loaded": "kv-cost", "tenant-admission": "vtc", "queue-and-kv": "target-utilisation"} {
		module, err := os.ReadFile(filepath.Join(examples, name, "c", "policy.wasm"))
		if err != nil {
			t.Fatal(err)
		}
		r, err := Measure(t.Context(), TimesOptions{Module: module, Rounds: 3, Seed: 1})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, n := range r.Counts {
			key := keyOf(n)
			if r.US[key] <= 0 || r.FuelP50[key] <= 0 || r.FuelP99[key] < r.FuelP50[key] || r.FuelP99[key] > r.Budget {
				t.Errorf("%s of %d rows: %+v", name, n, r)
			}
		}
		if len(r.Native[native]) != len(r.Counts) || len(r.Faults) > 0 || r.Allocs > 0 && r.Kind == "router" {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// Faults are told and are no error: the fallback decides.
func TestMeasureFaults(t *testing.T) {
	r, err := Measure(t.Context(), TimesOptions{Module: abitest.Policy{Code: "unreachable"}.Build(), Counts: []int{16}, Rounds: 1})
	if missed := r.Unanswered["16"]; err != nil || r.Faults["trap"] == 0 || missed.Share != 1 || !slices.Contains(missed.Why, "trap") {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := Measure(t.Context(), TimesOptions{Module: scorer, Counts: []int{60_000}, Rounds: 1}); !errors.Is(err, ErrRoom) {
		t.Errorf("too many rows: %v", err)
	}
	if _, err := Measure(t.Context(), TimesOptions{Module: scorer, Params: map[string]float64{"x": 1}}); !errors.Is(err, ErrParams) {
		t.Errorf("an unknown parameter: %v", err)
	}
}
