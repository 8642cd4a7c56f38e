package templates_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/plugins-sdk/templates"
)

func TestNew(t *testing.T) {
	for _, lang := range templates.Languages() {
		for _, kind := range templates.Kinds() {
			t.Run(lang+"/"+kind, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "deep", "project")
				if err := templates.NewKind(dir, lang, kind, "blue-policy"); err != nil {
					t.Fatal(err)
				}
				checkProject(t, dir)
				manifest, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
				if err != nil || !strings.Contains(string(manifest), `"kind": "`+kind+`"`) || !strings.Contains(string(manifest), `"name": "blue-policy"`) {
					t.Errorf("manifest %s, %v", manifest, err)
				}
			})
		}
	}
}

// checkProject checks that a project is whole and has its own name everywhere.
func checkProject(t *testing.T, dir string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		inside, _ := filepath.Rel(dir, path)
		for _, word := range []string{"my-policy", "tenant-admission", "queue-and-kv", "Command go is", "LANGUAGE", "TOOLCHAIN", "BINDINGS", "plugins-sdk/rust"} {
			if !strings.HasPrefix(inside, "sdk") && strings.Contains(string(data), word) {
				t.Errorf("%s still says %s", inside, word)
			}
		}
		if strings.HasSuffix(path, ".txt") || strings.HasSuffix(path, ".wasm") {
			t.Errorf("%s has no place there", inside)
		}
		return nil
	})
	if err != nil || files < 8 {
		t.Errorf("%d files, %v", files, err)
	}
	for _, name := range []string{"manifest.json", "golden.json", "README.md", ".gitignore", "build.sh", "sdk/build.sh", "sdk/SPEC.md"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := templates.NewKind(t.TempDir(), "go", "observer", "x"); !errors.Is(err, templates.ErrKind) {
		t.Errorf("got %v", err)
	}
	tests := []struct {
		dir, lang, name string
		want            error
	}{
		{t.TempDir(), "cobol", "x", templates.ErrLanguage},
		{t.TempDir(), "go", "Blue Router", templates.ErrName},
		{t.TempDir(), "go", "", templates.ErrName},
		{t.TempDir(), "go", "../x", templates.ErrName},
		{full, "go", "x", templates.ErrExists},
		{filepath.Join(full, "x"), "go", "x", nil}, // a file
	}
	for _, tt := range tests {
		if err := templates.New(tt.dir, tt.lang, tt.name); err == nil || tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("%+v: got %v", tt, err)
		}
	}
}
