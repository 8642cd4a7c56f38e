package project_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/policies/bind"
	"github.com/yardmaster/yardmaster/policies/project"
)

// Each missing tool is named with the way to get it.
func TestLacking(t *testing.T) {
	empty := t.TempDir()
	for _, name := range []string{"PATH", "CC", "GO", "ASC", "RUSTC"} {
		t.Setenv(name, "")
	}
	t.Setenv("PATH", empty)
	t.Setenv("RUSTC", filepath.Join(empty, "rustc"))
	for lang, want := range map[bind.Language]string{
		bind.C: "apt install clang lld", bind.Go: "https://go.dev/dl", bind.Rust: "https://rustup.rs", bind.AssemblyScript: "Node.js",
	} {
		if got := project.Lacking(empty, lang); !strings.Contains(got, want) {
			t.Errorf("%s: %q", lang, got)
		}
	}
	bin := t.TempDir()
	for _, name := range []string{"clang-18", "go", "node", "npx"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"), 0o700); err != nil { //nolint:gosec // it is to be found as a program
			t.Fatal(err)
		}
	}
	// A compiler without the target: this one prints a folder that has nothing.
	if err := os.WriteFile(filepath.Join(bin, "rustc"), []byte("#!/bin/sh\necho "+empty+"\n"), 0o700); err != nil { //nolint:gosec // likewise
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+"/usr/bin"+string(os.PathListSeparator)+"/bin")
	t.Setenv("RUSTC", filepath.Join(bin, "rustc"))
	for lang, want := range map[bind.Language]string{bind.C: "", bind.Go: "", bind.Rust: "rustup target add", bind.AssemblyScript: "npm install"} {
		if got := project.Lacking(empty, lang); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q", lang, got)
		}
	}
	if err := os.MkdirAll(filepath.Join(empty, "node_modules", ".bin", "asc"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := project.Lacking(filepath.Join(empty, "below"), bind.AssemblyScript); got != "" {
		t.Errorf("with a compiler above: %q", got)
	}
}
