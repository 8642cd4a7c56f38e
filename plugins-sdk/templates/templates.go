package templates

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	sdk "github.com/yardmaster/yardmaster/plugins-sdk"
)

var (
	// ErrLanguage says that there is no template in a language.
	ErrLanguage = errors.New("no template in this language")
	// ErrKind says that there is no template of a kind.
	ErrKind = errors.New("no template of this kind")
	// ErrName says that a policy cannot have a name.
	ErrName = errors.New("bad name of a policy")
	// ErrExists says that a folder is not empty.
	ErrExists = errors.New("folder is not empty")
)

// language is what differs between the templates.
type language struct {
	title, source, bindings, toolchain string
}

func languages() map[string]language {
	return map[string]language{
		"c":              {"C", "`policy.c`", "`policy.gen.h`", "clang and lld (`apt install clang lld`), or `CC=\"zig cc\"`"},
		"go":             {"Go", "`policy.go`", "`policy_gen.go`", "Go 1.24 or newer"},
		"rust":           {"Rust", "`src/lib.rs`", "`src/policy_gen.rs`", "rustc with its wasm32 target (`rustup target add wasm32-unknown-unknown`)"},
		"assemblyscript": {"AssemblyScript", "`assembly/policy.ts`", "`assembly/policy.gen.ts`", "Node 20 or newer, and `npm install` once"},
	}
}

// Languages are those that there are templates in.
func Languages() []string { return []string{"c", "go", "rust", "assemblyscript"} }

// placeholder is the name that templates have.
const placeholder = "my-policy"

// named is what a policy may be called.
var named = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)

// Kinds are those that there are templates of, the usual one first. The others begin
// with an example's decision.
func Kinds() []string { return []string{"router", "admission", "autoscaler"} }

// example is the example that a kind's projects begin with; none for router, which the
// templates themselves are of.
func example(kind string) string {
	return map[string]string{"admission": "tenant-admission", "autoscaler": "queue-and-kv"}[kind]
}

// New makes a project of a routing policy in dir, which is made if it is not there.
// lang is one of [Languages]. Errors wrap [ErrLanguage], [ErrName] or [ErrExists], or
// are the file system's; what was written until then stays.
func New(dir, lang, name string) error { return NewKind(dir, lang, "router", name) }

// NewKind is New for one of [Kinds]. Errors may wrap [ErrKind], too.
func NewKind(dir, lang, kind, name string) error {
	l, ok := languages()[lang]
	if !ok {
		return fmt.Errorf("%w: %q; there are %s", ErrLanguage, lang, strings.Join(Languages(), ", "))
	}
	if !slices.Contains(Kinds(), kind) {
		return fmt.Errorf("%w: %q; there are %s", ErrKind, kind, strings.Join(Kinds(), ", "))
	}
	if !named.MatchString(name) {
		return fmt.Errorf("%w: %q; it has from 1 to 63 of a-z, 0-9, - and _, and begins with a letter", ErrName, name)
	}
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return fmt.Errorf("%w: %s", ErrExists, dir)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	words := []string{
		placeholder, name, "Command go is ", "Command " + name + " is ",
		"LANGUAGE", l.title, "SOURCE", l.source, "BINDINGS", l.bindings, "TOOLCHAIN", l.toolchain,
	}
	copies := []struct{ from, to string }{
		{"templates/" + lang, "."},
		{lang, "sdk"},
		{"templates/build.sh", "build.sh"},
		{"templates/README.md.txt", "README.md"},
		{"templates/gitignore.txt", ".gitignore"},
		{"SPEC.md", "sdk/SPEC.md"},
	}
	if from := example(kind); from != "" {
		words = append([]string{"Command go is the policy " + from, "Command " + name, from, name}, words...)
		copies = append(copies, []struct{ from, to string }{
			{"examples/" + from + "/" + lang, "."}, {"examples/" + from + "/golden.json", "golden.json"},
		}...)
	}
	replaced := strings.NewReplacer(words...)
	for _, c := range copies {
		if err := tree(c.from, filepath.Join(dir, c.to), replaced); err != nil {
			return err
		}
	}
	if example(kind) == "" || lang != "go" {
		return nil
	}
	// The template's test is one of the template's decision.
	return os.Remove(filepath.Join(dir, "policy_test.go"))
}

// tree copies embedded files; words are replaced in those of the project, the SDK's
// have none of them.
func tree(from, to string, words *strings.Replacer) error {
	return fs.WalkDir(sdk.Files, from, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || name == "go/request_test.go" { // which tests by what a project has not
			return err
		}
		data, err := sdk.Files.ReadFile(name)
		if err != nil {
			return err
		}
		if strings.HasPrefix(from, "templates") || strings.HasPrefix(from, "examples") {
			data = []byte(words.Replace(string(data)))
		}
		return write(target(to, strings.TrimPrefix(name, from)), data)
	})
}

// target is where a file goes. Go's module files have another name here, or they would
// cut what lies below them out of this module.
func target(to, rest string) string {
	switch path.Base(rest) {
	case "go.mod.txt":
		rest = "/go.mod"
	case "sdk.mod.txt":
		rest = "/sdk/go.mod"
	}
	return filepath.Join(to, filepath.FromSlash(rest))
}

func write(name string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil { //nolint:gosec // sources, for their author's colleagues too
		return err
	}
	mode := os.FileMode(0o644)
	if strings.HasSuffix(name, ".sh") {
		mode = 0o755
	}
	return os.WriteFile(name, data, mode)
}
