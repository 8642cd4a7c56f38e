package abi_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/module"
)

func TestAppendManifest(t *testing.T) {
	bare := build(func(p *policy) { p.manifest = nil })
	once, err := abi.AppendManifest(bare, []byte(leastLoaded))
	if err != nil {
		t.Fatal(err)
	}
	m, err := module.Decode(once, module.Options{Imports: abi.Imports()})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := abi.Check(m); err != nil || got.Name != "least-loaded" {
		t.Errorf("got %+v, %v", got, err)
	}
	twice, err := abi.AppendManifest(once, []byte(leastLoaded))
	if err != nil || !bytes.Equal(once, twice) {
		t.Errorf("a second time makes another module, %v", err)
	}
}

func TestAppendManifestRefuses(t *testing.T) {
	good := build(func(*policy) {})
	if _, err := abi.AppendManifest(good, []byte("{}")); !errors.Is(err, abi.ErrManifest) {
		t.Errorf("a bad manifest: %v", err)
	}
	for _, bad := range [][]byte{nil, []byte("#!/bin/sh\n"), good[:len(good)-3], append(bytes.Clone(good), 0), append(bytes.Clone(good), 0, 0xff)} {
		if _, err := abi.AppendManifest(bad, []byte(leastLoaded)); !errors.Is(err, abi.ErrNoModule) {
			t.Errorf("%d bytes: %v", len(bad), err)
		}
	}
}

func FuzzAppendManifest(f *testing.F) {
	f.Add(build(func(*policy) {}))
	f.Fuzz(func(t *testing.T, wasm []byte) {
		once, err := abi.AppendManifest(wasm, []byte(leastLoaded))
		if err != nil {
			return
		}
		if twice, err := abi.AppendManifest(once, []byte(leastLoaded)); err != nil || !bytes.Equal(once, twice) {
			t.Errorf("a second time: %v", err)
		}
	})
}
