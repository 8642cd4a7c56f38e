package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/server/admin"
)

func TestWanted(t *testing.T) {
	tests := []struct {
		arg  string
		want admin.PolicyPartWant
		ok   bool
	}{
		{"sticky", admin.PolicyPartWant{Policy: "sticky", Weight: 1}, true},
		{"native:sticky", admin.PolicyPartWant{Policy: "native:sticky", Weight: 1}, true},
		{"least-loaded@1.0.0=2.5", admin.PolicyPartWant{Policy: "least-loaded@1.0.0", Weight: 2.5}, true},
		{"kv-cost=3(scale=8 fast=true)", admin.PolicyPartWant{Policy: "kv-cost", Weight: 3, Params: map[string]float64{"scale": 8, "fast": 1}}, true},
		{"kv-cost(scale=8,requests=0)", admin.PolicyPartWant{Policy: "kv-cost", Weight: 1, Params: map[string]float64{"scale": 8, "requests": 0}}, true},
		{"kv-cost()", admin.PolicyPartWant{Policy: "kv-cost", Weight: 1}, true},
		{"kv-cost(scale=8", admin.PolicyPartWant{}, false},
		{"kv-cost(scale)", admin.PolicyPartWant{}, false},
		{"kv-cost(=8)", admin.PolicyPartWant{}, false},
		{"kv-cost=0", admin.PolicyPartWant{}, false},
		{"kv-cost=much", admin.PolicyPartWant{}, false},
		{"=3", admin.PolicyPartWant{}, false},
		{"", admin.PolicyPartWant{}, false},
	}
	for _, tt := range tests {
		got, err := wanted(tt.arg)
		if (err == nil) != tt.ok {
			t.Errorf("%q: %v", tt.arg, err)
		}
		if diff := cmp.Diff(tt.want, got); tt.ok && diff != "" {
			t.Errorf("%q: -want +got:\n%s", tt.arg, diff)
		}
	}
}

func TestParseShare(t *testing.T) {
	for text, want := range map[string]float64{"5%": .05, "0.05": .05, "100%": 1, "0%": 0, "1": 1, "12.5%": .125, "101%": -1, "-1%": -1, "NaN": -1, "": -1, "%": -1, "half": -1} {
		got, err := parseShare(text)
		if want < 0 && err == nil || want >= 0 && (err != nil || got != want) {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
}
