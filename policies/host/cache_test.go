package host_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/yardmaster/yardmaster/policies/host"
)

// cached loads a policy through a cache in the directory.
func cached(t *testing.T, dir string) error {
	t.Helper()
	h, err := host.New(t.Context(), &services{}, host.Options{Cache: dir})
	if err != nil {
		return err
	}
	p, err := h.Load(t.Context(), router(simd), 1, nil)
	if err == nil {
		in := p.Take()
		in.F32(0)[0], in.F32(1)[0] = 3, 4
		if s, err := in.Score(1); err != nil || s[0] != 12 {
			t.Errorf("scores %v, %v", s, err)
		}
		p.Put(in)
		err = p.Close(t.Context())
	}
	return errors.Join(err, h.Close(t.Context()))
}

// files are those of the cache.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// A file of the cache that was damaged is made anew, and costs no more than time.
func TestDamagedCache(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	if err := cached(t, dir); err != nil {
		t.Fatal(err)
	}
	all := files(t, dir)
	if len(all) != 1 {
		t.Fatalf("%d files", len(all))
	}
	whole, err := os.ReadFile(all[0])
	if err != nil {
		t.Fatal(err)
	}
	for at := range whole {
		damaged := append([]byte(nil), whole...)
		damaged[at] ^= 0x41
		if at%16 == 0 {
			damaged = damaged[:at]
		}
		if at > 64 && at%37 != 0 && at%16 != 0 {
			continue // of the code some places are enough
		}
		if err := os.WriteFile(all[0], damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := cached(t, dir); err != nil {
			t.Errorf("damaged at byte %d of %d: %v", at, len(whole), err)
		}
	}
}

func TestCacheMustBePrivate(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o770); err != nil { //nolint:gosec // that is what is refused
		t.Fatal(err)
	}
	if err := cached(t, dir); !errors.Is(err, host.ErrCache) {
		t.Errorf("others may write there: %v", err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cached(t, file); !errors.Is(err, host.ErrCache) {
		t.Errorf("a file: %v", err)
	}
}

// Where the cache cannot be written policies are compiled all the same.
func TestFullDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	h, err := host.New(t.Context(), &services{}, host.Options{Cache: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	p, err := h.Load(t.Context(), router(simd), 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Close(t.Context()), h.Close(t.Context())); err != nil {
		t.Error(err)
	}
}
