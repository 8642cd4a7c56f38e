package vet

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/yardmaster/yardmaster/core/rollout"
)

func TestReadFileIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "large.wasm")
	for _, size := range []int{0, 8, rollout.MaxModule, rollout.MaxModule + 1, rollout.MaxModule + 100} {
		if err := os.WriteFile(path, bytes.Repeat([]byte("x"), size), 0o600); err != nil {
			t.Fatal(err)
		}
		if wasm, err := ReadFile(path); err != nil || len(wasm) != min(size, rollout.MaxModule+1) {
			t.Errorf("of %d bytes: %d, %v", size, len(wasm), err)
		}
	}
	if _, err := ReadFile(path + ".none"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
