package files

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBoundedAndSynced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, text := range []string{"longer than the next", "1234"} {
		if err := errors.Join(WriteSynced(path, []byte(text)), SyncFolder(dir)); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info, err)
	}
	if b, err := ReadBounded(path, 4); err != nil || string(b) != "1234" {
		t.Errorf("%q, %v", b, err)
	}
	if b, err := ReadBounded(path, 3); !errors.Is(err, ErrTooLong) {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := ReadBounded(filepath.Join(dir, "none"), 3); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if err := WriteSynced(dir, nil); err == nil {
		t.Error("wrote a folder")
	}
	if err := SyncFolder(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestUntil(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := Until(ctx, strings.NewReader("ab"))
	b := make([]byte, 1)
	if n, err := r.Read(b); n != 1 || err != nil {
		t.Error(n, err)
	}
	cancel()
	if _, err := io.ReadAll(r); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
