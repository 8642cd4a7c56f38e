package policies

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/plugins-sdk/templates"
	"github.com/yardmaster/yardmaster/policies/golden"
	"github.com/yardmaster/yardmaster/policies/project"
)

// A new project builds where nothing can be downloaded, and decides as its golden file
// says. A language whose toolchain is not here is skipped.
func TestNewProjectsBuild(t *testing.T) {
	for _, lang := range templates.Languages() {
		t.Run(lang, func(t *testing.T) {
			if raced && lang == "go" {
				t.Skip("policies in Go are tested without the race detector")
			}
			dir := filepath.Join(t.TempDir(), "project")
			if err := templates.New(dir, lang, "blue-router"); err != nil {
				t.Fatal(err)
			}
			if changed, err := project.Bind(dir); err != nil || changed {
				t.Errorf("the template's bindings are stale: %v", err)
			}
			wasm, err := project.Build(t.Context(), dir, project.Options{Env: []string{"GOFLAGS=", "GOPROXY=off", "GOWORK=off"}})
			if err != nil && lang != "go" && errors.Is(err, project.ErrToolchain) {
				t.Skipf("no toolchain: %.300s", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			file, err := os.ReadFile(filepath.Join(dir, "golden.json"))
			if err != nil {
				t.Fatal(err)
			}
			report, err := golden.Run(t.Context(), wasm, file)
			if err != nil || !report.OK() || report.Policy != "blue-router@0.1.0" {
				t.Errorf("%+v, %v", report, err)
			}
		})
	}
}

// The Go template's unit test runs outside of this repository.
func TestNewGoProjectTests(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "project")
	if err := templates.New(dir, "go", "blue-router"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOPROXY=off", "GOWORK=off", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestBuildSaysWhatIsWrong(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "project")
	if _, err := project.Build(t.Context(), dir, project.Options{}); !errors.Is(err, project.ErrProject) {
		t.Errorf("no folder: %v", err)
	}
	if err := templates.New(dir, "go", "blue-router"); err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(dir, "policy.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc score() {\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := project.Build(t.Context(), dir, project.Options{}); !errors.Is(err, project.ErrToolchain) || !strings.Contains(err.Error(), "policy.go:") {
		t.Errorf("a source that does not compile: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "sdk")); err != nil {
		t.Fatal(err)
	}
	if _, err := project.Build(t.Context(), dir, project.Options{}); !errors.Is(err, project.ErrProject) || !strings.Contains(err.Error(), "SDK") {
		t.Errorf("no SDK: %v", err)
	}
}
