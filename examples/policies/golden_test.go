package policies

import (
	"context"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/policies/bind"
	"github.com/yardmaster/yardmaster/policies/golden"
	"github.com/yardmaster/yardmaster/policies/project"
)

var rewrite = flag.Bool("rewrite", false, "write into golden files what the policies decide")

// conformance is where the echo policies stand.
const conformance = "../../policies/abi/testdata/conformance"

// roots are where policies stand.
var roots = []string{".", "../../plugins-sdk/examples", "../../plugins-sdk/templates", "../../plugins-sdk/conformance", "../../policies/builtin", conformance}

// built and compiled keep what was made in this run, by folder: Go's guests take their
// time.
var built, compiled sync.Map

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	compiled.Range(func(_, once any) bool {
		if p, err := once.(func() (*golden.Program, error))(); err == nil {
			_ = p.Close() // the process ends
		}
		return true
	})
	os.Exit(code)
}

// program is a policy, compiled once for all tests.
func program(t testing.TB, dir string) *golden.Program {
	t.Helper()
	wasm := module(t, dir)
	load := sync.OnceValues(func() (*golden.Program, error) { return golden.Load(context.Background(), wasm) })
	once, _ := compiled.LoadOrStore(dir, load)
	p, err := once.(func() (*golden.Program, error))()
	if err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	return p
}

// module is the committed module of a policy, or, in Go, one that is built now.
func module(t testing.TB, dir string) []byte {
	t.Helper()
	lang, err := project.Language(dir)
	if err != nil {
		t.Fatal(err)
	}
	if lang != bind.Go {
		wasm, err := os.ReadFile(filepath.Join(dir, "policy.wasm"))
		if err != nil {
			t.Fatal(err)
		}
		return wasm
	}
	if raced {
		t.Skip("policies in Go are tested without the race detector")
	}
	build := sync.OnceValues(func() ([]byte, error) {
		// The environment of race builds is not the guest's.
		return project.Build(t.Context(), dir, project.Options{SDK: "../../plugins-sdk/go", Env: []string{"GOFLAGS="}})
	})
	once, _ := built.LoadOrStore(dir, build)
	wasm, err := once.(func() ([]byte, error))()
	if err != nil {
		t.Fatal(err)
	}
	return wasm
}

// policies are the folders of all policies.
func policies(t *testing.T) []string {
	t.Helper()
	var dirs []string
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Name() == "manifest.json" {
				dirs = append(dirs, filepath.Dir(path))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return dirs
}

// goldenFile is a policy's own, or that of all its languages.
func goldenFile(t *testing.T, dir string) string {
	t.Helper()
	// That of an echo policy is with the contract.
	echo := filepath.Join(conformance, filepath.Base(filepath.Dir(dir)), "golden.json")
	for _, path := range []string{filepath.Join(dir, "golden.json"), filepath.Join(filepath.Dir(dir), "golden.json"), echo} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	t.Fatalf("%s has no golden.json", dir)
	return ""
}

func TestGoldenDecisions(t *testing.T) {
	for _, dir := range policies(t) {
		t.Run(strings.TrimLeft(dir, "./"), func(t *testing.T) {
			p := program(t, dir)
			path := goldenFile(t, dir)
			file, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			f, err := golden.Parse(file)
			if err != nil {
				t.Fatal(err)
			}
			if *rewrite {
				if _, err := p.Run(f); err != nil {
					t.Fatal(err)
				}
				out, err := f.Format()
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, out, 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			expects(t, f)
			report, err := p.Run(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range report.Cases {
				if len(c.Problems) > 0 {
					t.Errorf("%s: %s", c.Name, strings.Join(c.Problems, "\n"))
				}
			}
		})
	}
}

// expects says which cases have no expectation, and would test nothing.
func expects(t *testing.T, f *golden.File) {
	t.Helper()
	for _, c := range f.Cases {
		if !slices.ContainsFunc(c.Calls, func(call golden.Call) bool { return !cmp.Equal(call.Want, golden.Want{}) }) {
			t.Errorf("%s expects nothing", c.Name)
		}
	}
}
