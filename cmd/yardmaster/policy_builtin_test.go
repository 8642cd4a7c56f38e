package main

import (
	"bytes"
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
