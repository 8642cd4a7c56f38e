package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/plugins-sdk/templates"
)

func (a *app) policyNew() *cobra.Command {
	var lang, kind, dir string
	c := &cobra.Command{
		Use:   "new NAME",
		Short: "Make a project of a policy: source, manifest, golden decisions, SDK",
		Long: `Make a folder with a policy that decides something: its source in the language, a
manifest, golden decisions, a build script, and the SDK, so that nothing has to be
downloaded but what the language itself needs. Change the source and the manifest, then
build, test and push it.

The languages are go (Go 1.24), rust (rustc with wasm32-unknown-unknown), c (clang and
lld, or zig) and assemblyscript (Node.js and npm). The kinds are router, admission and
autoscaler; an observer begins best from examples/policies/latency.`,
		Example: `  yardmaster policy new blue-router --lang go
  yardmaster policy new gatekeeper --lang rust --kind admission
  yardmaster policy new blue-router --lang c --dir policies/blue`,
		Args: operand("NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			if lang == "" {
				return usage(fmt.Errorf("say the language with --lang, one of %s", strings.Join(templates.Languages(), ", ")))
			}
			if dir == "" {
				dir = args[0]
			}
			err := templates.NewKind(dir, lang, kind, args[0])
			switch {
			case errors.Is(err, templates.ErrLanguage), errors.Is(err, templates.ErrKind), errors.Is(err, templates.ErrName):
				return usage(err)
			case errors.Is(err, templates.ErrExists):
				return usage(fmt.Errorf("%w: choose another with --dir", err))
			case err != nil:
				return err
			}
			a.printNew(dir, lang, kind)
			return nil
		},
	}
	c.Flags().StringVar(&lang, "lang", "", "language: "+strings.Join(templates.Languages(), ", "))
	c.Flags().StringVar(&kind, "kind", "router", "what it decides: "+strings.Join(templates.Kinds(), ", "))
	c.Flags().StringVar(&dir, "dir", "", "folder to make; default: NAME")
	return c
}

// printNew says what is there now and what comes next.
func (a *app) printNew(dir, lang, kind string) {
	fmt.Fprintf(a.out, "%s: a policy of kind %s in %s; README.md says what each file is\n", dir, kind, lang)
	if lang == "assemblyscript" {
		fmt.Fprintf(a.out, "first:  npm install --prefix %s\n", dir)
	}
	fmt.Fprintf(a.out, "next:   yardmaster policy build %s\n        yardmaster policy test %s\n        yardmaster policy push %s --unsigned   (or --key FILE, where planners trust its key)\n",
		dir, dir, filepath.Join(dir, moduleFile))
}
