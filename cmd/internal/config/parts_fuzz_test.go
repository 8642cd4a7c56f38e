package config

import (
	"math"
	"testing"
)

func FuzzPolicyParts(f *testing.F) {
	for _, s := range []string{"kv-cost", "kv-cost=2,./mine.wasm=0.5", "mine.wasm=1(stay=5 go=1)", "mine.wasm(", "=1", "kv-cost=NaN", ",", "x.wasm=1e999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		parts, err := PolicyParts(raw)
		if err != nil {
			return
		}
		if len(parts) == 0 {
			t.Errorf("%q has no parts and no error", raw)
		}
		for _, p := range parts {
			if !(p.Weight > 0) || math.IsInf(p.Weight, 0) || !p.File && len(p.Params) > 0 {
				t.Errorf("%q gave %+v", raw, p)
			}
		}
	})
}
