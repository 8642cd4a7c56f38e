package main

import (
	"bytes"
	"math"
	"testing"

	"github.com/yardmaster/yardmaster/policies/builtin"
)

func TestBuiltinModules(t *testing.T) {
	for _, name := range builtin.Names() {
		module, err := moduleAt(builtin.Prefix + name)
		if known, _ := builtin.Module(name); err != nil || len(known) == 0 || !bytes.Equal(module, known) {
			t.Errorf("%s: %d bytes, %v", name, len(module), err)
		}
	}
	if _, err := moduleAt("builtin:other"); err == nil {
		t.Error("one that there is not")
	}
}

func FuzzWanted(f *testing.F) {
	for _, s := range []string{"kv", "kv@1=2", "kv(hit_weight=2 on=true)", "a=b(", "=1", "x=NaN", "x(=)", "x(y=NaN)"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		w, err := wanted(arg)
		if err != nil {
			return
		}
		if w.Policy == "" || w.Weight < 0 || math.IsNaN(w.Weight) {
			t.Errorf("%q gave %+v", arg, w)
		}
		for name := range w.Params {
			if name == "" {
				t.Errorf("%q gave a parameter without a name", arg)
			}
		}
	})
}
