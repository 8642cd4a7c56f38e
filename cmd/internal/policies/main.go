// Command policies builds every policy of the tree anew, from its source and the
// language's own toolchain, and compares what comes out with the module that is
// committed beside it: the bytes, or, where another version of a toolchain made other
// bytes, the answers to its golden decisions.
//
// Policies in Go have no committed module, for it would have 1.8 MB; they are built,
// and held to their golden decisions. A toolchain that is missing is skipped and said
// so. With -write the committed modules are replaced.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster/yardmaster/policies/bind"
	"github.com/yardmaster/yardmaster/policies/golden"
	"github.com/yardmaster/yardmaster/policies/project"
)

// conformance is where the echo policies stand.
const conformance = "policies/abi/testdata/conformance"

// roots are where policies stand.
var roots = []string{"plugins-sdk/examples", "plugins-sdk/templates", "plugins-sdk/conformance", "examples/policies", "policies/builtin", conformance}

// each is what one policy may take to build.
const each = 5 * time.Minute

// assemblyScript is the compiler that is fetched where none is given.
const assemblyScript = "assemblyscript@0.28.20"

func main() {
	only := flag.String("only", "", "only folders whose name contains this")
	write := flag.Bool("write", false, "replace the committed modules")
	cache := flag.String("cache", ".cache/policies", "folder for what is fetched: the AssemblyScript compiler")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Stdout, *cache, *only, *write)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "policies:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, cache, only string, write bool) error {
	dirs, err := policies()
	if err != nil {
		return err
	}
	missing := map[bind.Language]string{}
	for _, lang := range bind.Languages() {
		if why := project.Lacking(".", lang); why != "" && lang != bind.AssemblyScript {
			missing[lang] = why
		}
	}
	env, err := compiler(ctx, cache)
	if err != nil {
		missing[bind.AssemblyScript] = err.Error()
	}
	for lang, why := range missing {
		fmt.Fprintf(out, "skip  %s: %s\n", lang, why)
	}
	var failed []error
	for _, dir := range dirs {
		lang, err := project.Language(dir)
		if err != nil {
			return err
		}
		if _, skip := missing[lang]; skip || !strings.Contains(dir, only) {
			continue
		}
		verdict, err := check(ctx, dir, lang, env, write)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", dir, err))
			verdict = "FAIL"
		}
		fmt.Fprintf(out, "%-5s %s\n", verdict, dir)
	}
	return errors.Join(failed...)
}

// policies are the folders that have a manifest.
func policies() ([]string, error) {
	var dirs []string
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Name() == "manifest.json" {
				dirs = append(dirs, filepath.Dir(path))
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return dirs, nil
}

func found(name string) bool {
	_, err := exec.LookPath(name)
	return err == nil
}

var errNode = errors.New("there is no node with npm")

// compiler finds or fetches the AssemblyScript compiler, for build scripts.
func compiler(ctx context.Context, cache string) ([]string, error) {
	if os.Getenv("ASC") != "" {
		return nil, nil
	}
	if !found("node") || !found("npm") {
		return nil, errNode
	}
	cache, err := filepath.Abs(cache)
	if err != nil {
		return nil, err
	}
	asc := filepath.Join(cache, "node_modules/.bin/asc")
	if _, err := os.Stat(asc); err != nil {
		ctx, cancel := context.WithTimeout(ctx, each)
		defer cancel()
		if err := os.MkdirAll(cache, 0o755); err != nil {
			return nil, err
		}
		cmd := exec.CommandContext(ctx, "npm", "install", "--prefix", cache, "--no-audit", "--no-fund", "--silent", assemblyScript)
		if text, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("npm cannot fetch %s: %w %s", assemblyScript, err, bytes.TrimSpace(text))
		}
	}
	return []string{"ASC=" + asc}, nil
}

// check builds one policy and compares. The verdict is a word for the list.
func check(ctx context.Context, dir string, lang bind.Language, env []string, write bool) (verdict string, err error) {
	ctx, cancel := context.WithTimeout(ctx, each)
	defer cancel()
	wasm, err := project.Build(ctx, dir, project.Options{SDK: filepath.Join("plugins-sdk", string(lang)), Env: env})
	if err != nil {
		return "", err
	}
	if err := decide(ctx, dir, wasm); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "policy.wasm")
	committed, err := os.ReadFile(path)
	switch {
	case lang == bind.Go:
		return "good", nil
	case write:
		return "wrote", os.WriteFile(path, wasm, 0o644)
	case err != nil:
		return "", err
	case bytes.Equal(committed, wasm):
		return "same", nil
	}
	// Another compiler makes other bytes. Both have to decide as the golden file says.
	return "alike", decide(ctx, dir, committed)
}

// decide holds a module to the policy's golden decisions.
func decide(ctx context.Context, dir string, wasm []byte) error {
	var file []byte
	err := fs.ErrNotExist
	// A policy's own, that of all its languages, or, of an echo policy, the contract's.
	for _, place := range []string{dir, filepath.Dir(dir), filepath.Join(conformance, filepath.Base(filepath.Dir(dir)))} {
		if errors.Is(err, fs.ErrNotExist) {
			file, err = os.ReadFile(filepath.Join(place, "golden.json"))
		}
	}
	if err != nil {
		return err
	}
	report, err := golden.Run(ctx, wasm, file)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(report.Cases, func(c golden.CaseReport) bool { return len(c.Problems) > 0 })
	if i >= 0 {
		return fmt.Errorf("golden decisions: %s: %s", report.Cases[i].Name, strings.Join(report.Cases[i].Problems, "; "))
	}
	return nil
}
