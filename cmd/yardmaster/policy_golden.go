package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/policies/golden"
)

// goldenFile is what a project's golden decisions are called.
const goldenFile = "golden.json"

func (a *app) policyTest() *cobra.Command {
	var file string
	var record bool
	var out output
	c := &cobra.Command{
		Use:   "test [DIR|FILE]",
		Short: "Hold a policy to its golden decisions",
		Long: `Run a built policy on the cases of golden.json beside it: columns and a request in,
and what comes out must be what the file says, to the last bit. The host is the one of
production, with the clock, seed and state that the file sets. It prints where an answer
is another one, and then the exit code is 1.

--record writes the policy's answers into the file as the expected ones: read the
difference before you keep it. The format is in plugins-sdk/SPEC.md.`,
		Example: `  yardmaster policy test
  yardmaster policy test blue-router --record
  yardmaster policy test policy.wasm --golden cases.json -o json`,
		Args: optional("DIR or FILE"),
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := interruptible(c.Context())
			defer stop()
			if err := a.testPolicy(ctx, folder(args), file, record, &out); err != nil {
				return interruptedOr(ctx, err)
			}
			return nil
		},
	}
	c.Flags().StringVar(&file, "golden", "", "file with the decisions; default: golden.json beside the module")
	c.Flags().BoolVar(&record, "record", false, "write what the policy answers into the file")
	out.flag(c)
	return c
}

func (a *app) testPolicy(ctx context.Context, what, file string, record bool, out *output) error {
	module, err := a.moduleOf(what)
	if err != nil {
		return err
	}
	wasm, err := moduleAt(module)
	if err != nil {
		return err
	}
	if file == "" {
		file = filepath.Join(filepath.Dir(module), goldenFile)
	}
	cases, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return &codedError{exitNotFound, fmt.Errorf("there is no %s: write its cases (plugins-sdk/SPEC.md has the format), or name a file with --golden", file)}
	}
	if err != nil {
		return err
	}
	if record {
		return a.recordGolden(ctx, wasm, cases, file)
	}
	report, err := golden.Run(ctx, wasm, cases)
	if err != nil {
		return usage(fmt.Errorf("%s: %w", module, err))
	}
	return a.printGolden(report, file, out)
}

func (a *app) recordGolden(ctx context.Context, wasm, cases []byte, file string) error {
	answers, err := golden.Record(ctx, wasm, cases)
	if err != nil {
		return usage(err)
	}
	report, err := golden.Run(ctx, wasm, cases)
	if err != nil {
		return usage(err)
	}
	if err := os.WriteFile(file, answers, 0o644); err != nil { //nolint:gosec // a source, like its neighbours
		return err
	}
	fmt.Fprintf(a.out, "%s: %d cases, of which %d answered otherwise than was written; look at the difference before you keep it\n",
		file, len(report.Cases), differing(report))
	return nil
}

// differing counts the cases with problems.
func differing(r *golden.Report) (cases int) {
	for _, c := range r.Cases {
		if len(c.Problems) > 0 {
			cases++
		}
	}
	return cases
}

// printGolden prints a row for each case and then, by case, what differs.
func (a *app) printGolden(r *golden.Report, file string, out *output) error {
	rows := make([][]string, 0, len(r.Cases))
	for _, c := range r.Cases {
		verdict := "ok"
		if n := len(c.Problems); n > 0 {
			verdict = strconv.Itoa(n) + " differ"
		}
		rows = append(rows, []string{c.Name, verdict, strconv.Itoa(c.Calls), strconv.FormatInt(c.Fuel, 10)})
	}
	if err := out.print(a.out, r, []string{"CASE", "VERDICT", "CALLS", "FUEL"}, rows); err != nil {
		return err
	}
	if out.String() == "table" {
		for _, c := range r.Cases {
			if len(c.Problems) > 0 {
				fmt.Fprintf(a.out, "\n%s\n", c.Name)
			}
			for _, problem := range c.Problems {
				fmt.Fprintf(a.out, "  %s\n", problem)
			}
		}
	}
	if r.OK() {
		return nil
	}
	return &codedError{exitRuntime, fmt.Errorf("%s answers otherwise than %s says in %d of %d cases (if that is meant: --record)", r.Policy, file, differing(r), len(r.Cases))}
}

// moduleOf is the module's file: what was named, or policy.wasm in the folder that was
// named. It warns of a module that is older than a source.
func (a *app) moduleOf(what string) (string, error) {
	about, err := os.Stat(what)
	if err != nil {
		return "", err
	}
	if !about.IsDir() {
		return what, nil
	}
	module := filepath.Join(what, moduleFile)
	built, err := os.Stat(module)
	if errors.Is(err, fs.ErrNotExist) {
		return "", &codedError{exitNotFound, fmt.Errorf("there is no %s: build it with `yardmaster policy build %s`", module, what)}
	}
	if err != nil {
		return "", err
	}
	if newer := changedSince(what, built.ModTime()); newer != "" {
		fmt.Fprintf(a.err, "yardmaster: warning: %s changed after %s was built: `yardmaster policy build %s` builds it anew\n", newer, module, what)
	}
	return module, nil
}

// changedSince is a source of a project that is newer than its module, or nothing.
func changedSince(dir string, built time.Time) (newer string) {
	for _, pattern := range []string{"manifest.json", "*.go", "*.c", "*.h", "src/*.rs", "assembly/*.ts"} {
		files, _ := filepath.Glob(filepath.Join(dir, pattern)) // the patterns are well formed
		for _, file := range files {
			if about, err := os.Stat(file); err == nil && about.ModTime().After(built) {
				return file
			}
		}
	}
	return ""
}
