package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/scale"
)

func TestParsePool(t *testing.T) {
	key := func(model string, role fleet.Role) scale.Key { return scale.Key{Model: model, Role: role} }
	for raw, want := range map[string]PoolLimit{
		"decode=1-4":           {key("", fleet.RoleDecode), 1, 4},
		"llama/prefill=0-2":    {key("llama", fleet.RolePrefill), 0, 2},
		"org/llama-3/both=2-":  {key("org/llama-3", fleet.RoleBoth), 2, 0},
		"a=b/decode=3-3":       {key("a=b", fleet.RoleDecode), 3, 3},
		"llama/decode=0-16384": {key("llama", fleet.RoleDecode), 0, 16384},
	} {
		if got, err := ParsePool(raw); err != nil || got != want {
			t.Errorf("%q: %+v, %v", raw, got, err)
		}
	}
	for raw, want := range map[string]string{
		"decode":              "not a pool",
		"/decode=1-2":         "1 to",
		"llama/encode=1-2":    "role",
		"decode=2":            "fewest and most are missing",
		"decode=x-":           "not a number of workers",
		"decode=1-16385":      "not a number of workers",
		"decode=-2":           "not a number of workers",
		"decode=3-2":          "the fewest are more",
		"decode=0-0":          "make no pool",
		"":                    "not a pool",
		"=1-2":                "role",
		"llama/decode=1-2-3":  "not a number of workers",
		"llama/decode=+1-2":   "not a number of workers",
		"llama/decode=1 - 2":  "not a number of workers",
		"llama/decode/=1-2":   "role",
		"llama/decode=0x1-10": "not a number of workers",
	} {
		if _, err := ParsePool(raw); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", raw, err, want)
		}
	}
}

func FuzzParsePool(f *testing.F) {
	for _, seed := range []string{"decode=1-4", "org/llama/both=2-", "=", "/=-", "decode=99999999999-1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		p, err := ParsePool(raw)
		if err == nil && (p.Role == 0 || p.Most > 0 && p.Least > p.Most || p.Most > scale.MaxReplicas) {
			t.Errorf("%q: %+v", raw, p)
		}
	})
}

func TestLimits(t *testing.T) {
	s := Scale{
		Pools: []string{"decode=1-4", "llama/decode=2-8", "llama/both=0-"}, TTFT: time.Second, ITL: time.Millisecond,
	}
	for key, want := range map[scale.Key]scale.Limits{
		{Model: "llama", Role: fleet.RoleDecode}:  {Least: 2, Most: 8, Between: time.Millisecond},
		{Model: "other", Role: fleet.RoleDecode}:  {Least: 1, Most: 4, Between: time.Millisecond},
		{Model: "llama", Role: fleet.RolePrefill}: {Least: 1, First: time.Second},
		{Model: "llama", Role: fleet.RoleBoth}:    {First: time.Second, Between: time.Millisecond},
	} {
		if got := s.Limits(key); got != want {
			t.Errorf("%v: %+v, want %+v", key, got, want)
		}
	}
	want := []scale.Key{{Model: "llama", Role: fleet.RoleDecode}, {Model: "llama", Role: fleet.RoleBoth}}
	if diff := cmp.Diff(want, s.Named()); diff != "" {
		t.Error(diff)
	}
}
