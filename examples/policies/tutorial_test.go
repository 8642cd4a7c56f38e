package policies

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/plugins-sdk/templates"
	"github.com/yardmaster/yardmaster/policies/golden"
	"github.com/yardmaster/yardmaster/policies/project"
)

// The tutorial shows the template's source, and the change that it proposes works.
func TestTutorial(t *testing.T) {
	text := read(t, "../../plugins-sdk/TUTORIAL.md")
	_, shown, _ := strings.Cut(text, "```c\n")
	shown, _, _ = strings.Cut(shown, "```")
	if source := read(t, "../../plugins-sdk/templates/c/policy.c"); shown == "" || !strings.Contains(source, shown) {
		t.Errorf("the tutorial shows another source than the template's:\n%s", shown)
	}
	dir := filepath.Join(t.TempDir(), "blue-router")
	if err := templates.New(dir, "c", "blue-router"); err != nil {
		t.Fatal(err)
	}
	edit := func(name, old, with string) {
		t.Helper()
		path := filepath.Join(dir, name)
		before := read(t, path)
		after := strings.ReplaceAll(before, old, with)
		if before == after {
			t.Fatalf("%s has no %q", name, old)
		}
		if err := os.WriteFile(path, []byte(after), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	edit("manifest.json", `{"name": "hit_tokens"}`, `{"name": "hit_tokens"}, {"name": "requests"}`)
	edit("policy.c", `ym_in.hit_tokens[i])`, `ym_in.hit_tokens[i]) + 100 * ym_in.requests[i]`)
	edit("golden.json", `[900, 100, 400]`, `[900, 100, 400], "requests": [0, 0, 0]`)
	edit("golden.json", `[900, 100]`, `[900, 100], "requests": [0, 0]`)
	wasm, err := project.Build(t.Context(), dir, project.Options{})
	if errors.Is(err, project.ErrToolchain) {
		t.Skipf("no clang for wasm32: %.200s", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	file := []byte(read(t, filepath.Join(dir, "golden.json")))
	// Nothing of what was expected changes, for there are no requests.
	report, err := golden.Run(t.Context(), wasm, file)
	if err != nil || !report.OK() {
		t.Errorf("%+v, %v", report, err)
	}
	busy, err := golden.Record(t.Context(), wasm, bytes.ReplaceAll(file, []byte(`"requests": [0, 0, 0]`), []byte(`"requests": [0, 9, 0]`)))
	if err != nil || !bytes.Contains(busy, []byte("[1900, 2000, 1400]")) {
		t.Errorf("%s, %v", busy, err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
