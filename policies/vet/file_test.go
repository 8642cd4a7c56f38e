package vet

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestReadFileIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "large.wasm")
	for _, size := range []int{0, 8, MostBytes, MostBytes + 1, MostBytes + 100} {
		if err := os.WriteFile(path, bytes.Repeat([]byte("x"), size), 0o600); err != nil {
			t.Fatal(err)
		}
		if wasm, err := ReadFile(path); err != nil || len(wasm) != min(size, MostBytes+1) {
			t.Errorf("of %d bytes: %d, %v", size, len(wasm), err)
		}
	}
	if _, err := ReadFile(path + ".none"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
