package planner

import (
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// purePackages hold state that every node must compute alike, or the code that
// turns it into bytes.
var purePackages = []string{"core/planner", "core/fleet", "core/quota", "core/rollout", "core/table", "core/mix", "core/wire/control"}

// impure are imports whose results differ between nodes or that reach outside.
var impure = []string{
	"os", "net", "math/rand", "math/rand/v2", "crypto/rand", "log", "log/slog", "runtime", "syscall", "maps",
	"github.com/yardmaster/yardmaster/core/clock",
}

// TestStateMachineIsPure reads the source of the replicated state: no clock, no
// randomness, no I/O, no goroutine, no select and no range over a map.
func TestStateMachineIsPure(t *testing.T) {
	exports := exportData(t)
	for _, dir := range purePackages {
		for _, fault := range impurities(t, filepath.Join("..", "..", dir), exports) {
			t.Error(fault)
		}
	}
}

func TestImpuritiesAreFound(t *testing.T) {
	dir := t.TempDir()
	src := `package bad
import ("time"; _ "math/rand/v2")
func f(m map[string]int, c chan int) { for range m {}; _ = time.Now; go f(m, c); select { default: } }
`
	if err := os.WriteFile(filepath.Join(dir, "bad.go"), []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	faults := strings.Join(impurities(t, dir, exportData(t)), "\n")
	for _, want := range []string{"range over a map", "time.Now", "goroutine", "select", "imports math/rand/v2"} {
		if !strings.Contains(faults, want) {
			t.Errorf("%q was not found in:\n%s", want, faults)
		}
	}
}

func impurities(t *testing.T, dir string, exports map[string]string) []string {
	t.Helper()
	fset := token.NewFileSet()
	var files []*ast.File
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no source in %s: %v", dir, err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	lookup := func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, errors.New("no export data for " + path)
		}
		return os.Open(exports[path])
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", lookup)}
	if _, err := conf.Check(dir, fset, files, info); err != nil {
		t.Fatal(err)
	}
	var faults []string
	for _, f := range files {
		faults = append(faults, fileImpurities(fset, f, info)...)
	}
	return faults
}

func fileImpurities(fset *token.FileSet, f *ast.File, info *types.Info) (faults []string) {
	at := func(n ast.Node, text string) { faults = append(faults, fset.Position(n.Pos()).String()+": "+text) }
	for _, imp := range f.Imports {
		if path := strings.Trim(imp.Path.Value, `"`); slices.Contains(impure, path) || strings.HasPrefix(path, "net/") {
			at(imp, "imports "+path)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.RangeStmt:
			if _, isMap := info.TypeOf(n.X).Underlying().(*types.Map); isMap {
				at(n, "range over a map")
			}
		case *ast.GoStmt:
			at(n, "starts a goroutine")
		case *ast.SelectStmt:
			at(n, "select")
		case *ast.Ident:
			fn, ok := info.Uses[n].(*types.Func)
			if ok && fn.Pkg() != nil && fn.Pkg().Path() == "time" && fn.Signature().Recv() == nil {
				at(n, "uses time."+fn.Name())
			}
		}
		return true
	})
	return faults
}

// exportData maps the packages that the pure ones need to compiled type
// information.
func exportData(t *testing.T) map[string]string {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}", "time", "math/rand/v2"}
	for _, dir := range purePackages {
		args = append(args, "./"+dir)
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	exports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
		exports[path] = file
	}
	return exports
}
