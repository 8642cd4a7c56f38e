package main

import (
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/server/admin"
)

// A size below the least of a pool holds no longer than the plan is held: it is said.
func TestBelowLeast(t *testing.T) {
	s := &admin.ScaleStatus{Pools: []admin.ScalePool{{Model: "m", Role: "prefill", Least: 1}, {Model: "m", Role: "decode", Least: 2}}}
	set := func(role string, n uint32) *admin.ScaleChange {
		return &admin.ScaleChange{Verb: "set", Model: "m", Role: role, Desired: &n}
	}
	for _, tt := range []struct {
		change *admin.ScaleChange
		has    []string // none: nothing is said
	}{
		{set("decode", 2), nil},
		{set("decode", 1), []string{"m/decode is to have 1, fewer than its least of 2", "scale resume"}},
		{set("prefill", 0), []string{"m/prefill is to have 0", "unless its workers are gone"}},
		{set("both", 0), nil},
		{&admin.ScaleChange{Verb: "release"}, nil},
	} {
		got := belowLeast(s, tt.change)
		if (got == "") != (tt.has == nil) {
			t.Errorf("%+v: %q", tt.change, got)
		}
		for _, text := range tt.has {
			if !strings.Contains(got, text) {
				t.Errorf("%+v: %q lacks %q", tt.change, got, text)
			}
		}
	}
}
