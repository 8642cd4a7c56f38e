package tidy

import (
	"bufio"
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../../.."

// files lists what belongs to the repository: what git tracks or would add,
// or, outside a git checkout, everything that is not hidden.
func files(t *testing.T) []string {
	t.Helper()
	git := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	if out, err := git.Output(); err == nil && len(out) > 0 {
		names := strings.Split(strings.TrimRight(string(out), "\x00"), "\x00")
		return slices.DeleteFunc(names, func(name string) bool {
			_, err := os.Lstat(filepath.Join(root, name))
			return err != nil // deleted and not committed yet
		})
	}
	var names []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		if d.IsDir() && (name == ".git" || name == "bin" || name == "dist") {
			return filepath.SkipDir
		}
		if !d.IsDir() {
			names = append(names, filepath.ToSlash(name))
		}
		return nil
	})
	if err != nil || len(names) == 0 {
		t.Fatalf("%d files, %v", len(names), err)
	}
	return names
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestTopLevel(t *testing.T) {
	allowed := []string{
		"core", "policies", "plugins-sdk", "server", "raftstore", "gpu", "cmd", "examples",
		"go.mod", "go.sum", "Makefile", "README.md", "LICENSE",
	}
	seen := map[string]bool{}
	for _, name := range files(t) {
		top, _, _ := strings.Cut(name, "/")
		if !seen[top] && !strings.HasPrefix(top, ".") && !slices.Contains(allowed, top) {
			t.Errorf("%s stands at the top level; each thing has a room inside", top)
		}
		seen[top] = true
	}
	for _, name := range []string{"Makefile", "README.md", "LICENSE", ".ci", ".golangci.yml"} {
		if !seen[name] {
			t.Errorf("%s is missing", name)
		}
	}
}

// The patterns are put together here so that this file does not match itself.
func forbiddenText() map[string]string {
	return map[string]string{
		"/" + "work/":                "a machine's path",
		"/" + "farm/":                "a machine's path",
		"/tmp/" + "plan":             "a machine's path",
		"py" + "pi.org":              "a registry's host",
		"python" + "hosted.org":      "a registry's host",
		"npm" + "js.org":             "a registry's host",
		"registry.npm" + "js.com":    "a registry's host",
		"proxy.go" + "lang.org":      "a registry's host",
		"deb." + "debian.org":        "a registry's host",
		"FIX" + "ME":                 "unfinished work",
		"TO" + "DO":                  "unfinished work",
		"not " + "implemented":       "unfinished work",
		"panic(\"un" + "implemented": "unfinished work",
		"\"er" + "r\", ":             "a log's word for it is error",
		"\"SE" + "ED\"":              "the variable is YARDMASTER_SEED",
	}
}

func TestForbiddenText(t *testing.T) {
	patterns := forbiddenText()
	for _, name := range files(t) {
		if strings.HasSuffix(name, ".sum") || strings.Contains(name, "testdata/") || strings.HasSuffix(name, ".pb.go") {
			continue
		}
		text := read(t, name)
		if bytes.IndexByte(text[:min(len(text), 8000)], 0) >= 0 {
			continue // binary
		}
		for pattern, why := range patterns {
			if line, ok := lineWith(text, pattern); ok {
				t.Errorf("%s:%d holds %q: %s", name, line, pattern, why)
			}
		}
	}
}

func lineWith(text []byte, pattern string) (int, bool) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, len(text)+1)
	for n := 1; lines.Scan(); n++ {
		at := bytes.Index(lines.Bytes(), []byte(pattern))
		// A path matters where it begins: "network/" holds no machine's path.
		if at > 0 && pattern[0] == '/' && wordByte(lines.Bytes()[at-1]) {
			continue
		}
		if at >= 0 {
			return n, true
		}
	}
	return 0, false
}

func wordByte(b byte) bool {
	return b == '.' || b == '_' || b == '-' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
}

func TestScriptsHaveTheirRunBit(t *testing.T) {
	info, err := os.Stat(filepath.Join(root, ".ci/run"))
	if err != nil || info.Mode()&0o111 == 0 {
		t.Errorf(".ci/run: %v, %v", info, err)
	}
}

// server and gpu may not import one another, and core has no sockets: what both
// need of one stands in each, word for word.
func TestTwins(t *testing.T) {
	for _, name := range []string{"socket_linux.go", "socket_other.go"} {
		if !bytes.Equal(read(t, "server/h1/"+name), read(t, "gpu/engine/h1/"+name)) {
			t.Errorf("server/h1/%s and gpu/engine/h1/%s differ: change both", name, name)
		}
	}
}
