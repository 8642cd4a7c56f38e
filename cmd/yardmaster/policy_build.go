package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/policies/project"
	"github.com/yardmaster/yardmaster/policies/vet"
)

// moduleFile is what a project's module is called.
const moduleFile = "policy.wasm"

// buildTime bounds a language's toolchain, whose first build may fetch and compile
// much.
const buildTime = 10 * time.Minute

// policyBuilt is what `policy build` prints.
type policyBuilt struct {
	Module   string     `json:"module"`
	Language string     `json:"language"`
	Seconds  float64    `json:"build_seconds"`
	Report   vet.Report `json:"report"`
}

func (a *app) policyBuild() *cobra.Command {
	var sdk, module string
	var out output
	c := &cobra.Command{
		Use:   "build [DIR]",
		Short: "Build a policy's module, and check it as an upload is checked",
		Long: `Build the policy in DIR, or in this folder, with its language's own toolchain:
bindings are brought up to date with manifest.json, the SDK's build script runs, the
manifest is appended, and policy.wasm is written. Then the checks of an upload run here,
all but the signature: structure, contract, meter, and a dry run in a process of its
own. A refusal says which check failed and why; the module is written all the same.

The build script runs with your rights: build what you trust.`,
		Example: `  yardmaster policy build
  yardmaster policy build blue-router
  yardmaster policy build blue-router -o json`,
		Args: optional("DIR"),
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := interruptible(c.Context())
			defer stop()
			dir := folder(args)
			if module == "" {
				module = filepath.Join(dir, moduleFile)
			}
			err := a.buildPolicy(ctx, dir, sdk, module, &out)
			if err != nil && ctx.Err() != nil {
				return errInterrupted
			}
			return err
		},
	}
	c.Flags().StringVar(&sdk, "sdk", "", "folder of the language's SDK; default: sdk in DIR")
	c.Flags().StringVar(&module, "module", "", "file to write; default: policy.wasm in DIR")
	out.flag(c)
	return c
}

// optional checks that a command got at most the one thing it works on.
func optional(name string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) > 1 {
			return fmt.Errorf("%q is one too many, after %s: %s", args[1], name, c.UseLine())
		}
		return nil
	}
}

// folder is the folder that was named, or this one.
func folder(args []string) string {
	if len(args) == 0 {
		return "."
	}
	return args[0]
}

func (a *app) buildPolicy(ctx context.Context, dir, sdk, module string, out *output) error {
	lang, err := project.Language(dir)
	if err != nil {
		return usage(fmt.Errorf("%w (`yardmaster policy new NAME --lang go` makes such a folder)", err))
	}
	if why := project.Lacking(dir, lang); why != "" {
		return usage(errors.New(why))
	}
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, buildTime)
	defer cancel()
	wasm, err := project.Build(limited, dir, project.Options{SDK: sdk})
	if errors.Is(err, project.ErrToolchain) {
		// The toolchain's own lines say where the mistake is.
		fmt.Fprintln(a.err, err)
		return &codedError{exitRuntime, fmt.Errorf("%s was not built; the messages above are the toolchain's", dir)}
	}
	if err != nil && wasm == nil {
		return &codedError{exitRuntime, fmt.Errorf("%s: %w", dir, err)}
	}
	// A module that breaks the contract is written, too: its author may want to look.
	built := policyBuilt{Module: module, Language: string(lang), Seconds: time.Since(began).Seconds()}
	if err := os.WriteFile(module, wasm, 0o644); err != nil { //nolint:gosec // a build's result, like its sources
		return err
	}
	return a.checkPolicy(ctx, wasm, &built, out)
}

// checkPolicy runs the checks of an upload and prints them.
func (a *app) checkPolicy(ctx context.Context, wasm []byte, built *policyBuilt, out *output) error {
	checks := vet.Config{AllowUnsigned: true}
	if self, err := os.Executable(); err == nil {
		checks.Command = []string{self, vet.ChildCommand}
	}
	pipeline, err := vet.New(checks)
	if err != nil {
		return err
	}
	report, refused := pipeline.Check(ctx, wasm, nil)
	if refused != nil && !errors.Is(refused, vet.ErrRefused) {
		return refused
	}
	// Who signs is for push.
	report.Steps = slices.DeleteFunc(report.Steps, func(s vet.Step) bool { return s.Name == vet.StepSignature })
	built.Report = report
	heading, rows := reportTable(&report)
	if err := out.print(a.out, built, heading, rows); err != nil {
		return err
	}
	if refused != nil {
		return &codedError{exitRuntime, fmt.Errorf("%s would be refused: %w", built.Module, report.Err())}
	}
	if out.String() == "table" {
		fmt.Fprintf(a.out, "\n%s: %s@%s, %d bytes; try it with `yardmaster policy test %s`\n",
			built.Module, report.Name, report.Version, report.Bytes, filepath.Dir(built.Module))
	}
	return nil
}
