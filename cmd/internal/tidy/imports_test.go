package tidy

import (
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/yardmaster/yardmaster"

// source is one Go file as far as the rules care.
type source struct {
	name    string // path from the root
	doc     string // package comment
	pkg     string
	imports []string
}

func (s source) dir() string  { return path.Dir(s.name) }
func (s source) test() bool   { return strings.HasSuffix(s.name, "_test.go") }
func (s source) room() string { room, _, _ := strings.Cut(s.name, "/"); return room }

func sources(t *testing.T) []source {
	t.Helper()
	var out []source
	for _, name := range files(t) {
		if !strings.HasSuffix(name, ".go") || strings.Contains(name, "testdata/") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		s := source{name: name, pkg: file.Name.Name, doc: file.Doc.Text()}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			s.imports = append(s.imports, imported)
		}
		out = append(out, s)
	}
	if len(out) < 50 {
		t.Fatalf("only %d Go files found", len(out))
	}
	return out
}

// mayImport says which rooms a room may look into, beside itself.
var mayImport = map[string][]string{
	"core":        nil,
	"policies":    {"core"},
	"gpu":         {"core"},
	"server":      {"core"},
	"raftstore":   {"core"},
	"cmd":         {"core", "policies", "gpu", "server", "raftstore", "plugins-sdk"},
	"plugins-sdk": nil,
	"examples":    {"core", "policies", "gpu", "server", "raftstore", "plugins-sdk"},
}

func TestRoomsDoNotImportOneAnother(t *testing.T) {
	for _, s := range sources(t) {
		allowed, ok := mayImport[s.room()]
		if !ok {
			t.Errorf("%s is in no room", s.name)
			continue
		}
		for _, imported := range s.imports {
			inside, ok := strings.CutPrefix(imported, module+"/")
			if !ok {
				continue
			}
			room, _, _ := strings.Cut(inside, "/")
			if room != s.room() && !slices.Contains(allowed, room) {
				t.Errorf("%s imports %s: %s may import %v", s.name, imported, s.room(), append(allowed, s.room()))
			}
		}
	}
}

func TestCoreTouchesNoWorld(t *testing.T) {
	for _, s := range sources(t) {
		if s.room() != "core" || s.test() {
			continue
		}
		for _, imported := range s.imports {
			if imported == "net" || strings.HasPrefix(imported, "net/") || imported == "os" || strings.HasPrefix(imported, "os/") || imported == "syscall" {
				t.Errorf("%s imports %s: core reaches the world through interfaces", s.name, imported)
			}
		}
	}
}

// replicated lists the packages, and files, whose Apply must give the same bytes on every
// node, and all that they may import from the standard library's moody side.
var replicated = []string{
	"core/planner", "core/fleet", "core/prefix", "core/quota", "core/rollout", "core/table", "core/mix",
	"raftstore/prefixlog/fsm.go", "raftstore/prefixlog/entry.go",
	"core/scale/plan.go", // of the rest of its package Apply uses nothing
}

func TestReplicatedStateIsDeterministic(t *testing.T) {
	forbidden := []string{"time", "math/rand", "math/rand/v2", "crypto/rand", "hash/maphash", "context", "sync", "unsafe", "runtime", module + "/core/clock"}
	// What is no part of Apply, by package or file: readers beside it, times
	// that samples carry, a node's own overlay.
	allowed := map[string][]string{
		"core/prefix":            {"sync", "unsafe"},
		"core/prefix/overlay.go": {"time"},
		"core/fleet":             {"time", "sync"},
	}
	for _, s := range sources(t) {
		if s.test() || !slices.Contains(replicated, s.dir()) && !slices.Contains(replicated, s.name) {
			continue
		}
		for _, imported := range s.imports {
			if slices.Contains(forbidden, imported) && !slices.Contains(allowed[s.dir()], imported) && !slices.Contains(allowed[s.name], imported) {
				t.Errorf("%s imports %s: Apply must not depend on time, chance or scheduling", s.name, imported)
			}
		}
	}
}

// A network that breaks on command has no business in a node.
func TestFaultsAreForTests(t *testing.T) {
	const faults = module + "/raftstore/transport/faultnet"
	for _, s := range sources(t) {
		if s.test() || strings.HasPrefix(s.dir(), "cmd/internal/bench") || strings.HasPrefix(s.dir(), "raftstore/nemesis") {
			continue
		}
		if slices.Contains(s.imports, faults) {
			t.Errorf("%s imports %s: it is for tests and the bench", s.name, faults)
		}
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	said, owed := map[string]bool{}, map[string]string{}
	for _, s := range sources(t) {
		if s.test() {
			continue
		}
		owed[s.dir()] = s.pkg
		want := "Package " + s.pkg + " "
		if s.pkg == "main" {
			want = "Command " + path.Base(s.dir()) + " "
		}
		if strings.HasPrefix(s.doc, want) {
			said[s.dir()] = true
		}
	}
	for dir, pkg := range owed {
		if !said[dir] {
			t.Errorf("%s: package %s has no comment that says what it is", dir, pkg)
		}
	}
}
