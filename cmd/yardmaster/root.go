package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/yardmaster/yardmaster/cmd/internal/assemble"
	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/cmd/internal/logline"
	"github.com/yardmaster/yardmaster/policies/vet"
)

// app is one invocation: its streams, its environment, and what the global
// flags said.
type app struct {
	in       io.Reader
	out, err io.Writer
	environ  []string
	version  string
	commit   string
	raise    func(slack time.Duration) error // starts the program again: see timerslack; nil in tests

	log   *logline.Handler // of a command that logs; closed by run
	file  string           // --config
	began bool             // a command's own code was reached: errors are no longer usage
}

// run executes one command line and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.root() //nolint:contextcheck // commands get theirs from ExecuteContext
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if a.log != nil {
		_ = a.log.Close() // a log that nobody takes is no failure of the command
	}
	if err != nil && !a.began {
		err = usage(plainly(err))
	}
	if err != nil && !errors.Is(err, errInterrupted) {
		fmt.Fprintf(a.err, "yardmaster: %s\n", explain(err))
	}
	return exitCode(err)
}

// plainly puts cobra's suggestion for an unknown command on the error's own line.
func plainly(err error) error {
	text, near, found := strings.Cut(err.Error(), "\n\nDid you mean this?\n")
	if words := strings.Fields(near); found && len(words) > 0 {
		return fmt.Errorf("%s; did you mean %q?", text, words[0])
	}
	return err
}

// unknownFlag adds to an unknown flag the one that was meant, if one is near.
func unknownFlag(c *cobra.Command, err error) error {
	name, ok := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !ok {
		return err
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	if near := config.Nearest(name, names); near != "" {
		return fmt.Errorf("%w; did you mean --%s?", err, near)
	}
	return fmt.Errorf("%w; %s --help shows those there are", err, c.CommandPath())
}

// operand checks that a command got the one thing it works on.
func operand(name string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return fmt.Errorf("%s is missing: %s", name, c.UseLine())
		case len(args) > 1:
			return fmt.Errorf("%q is one too many: %s", args[1], c.UseLine())
		}
		return nil
	}
}

// root builds the tree of commands.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "yardmaster",
		Short: "Place LLM requests on engines, prefill and decode apart, and move the KV between them",
		Long: `Yardmaster stands between clients and LLM inference engines. It decides which
worker computes which phase of each request and moves the KV cache between them.

Exit codes: 0 ok, 1 failure, 2 usage or configuration, 3 not found,
4 unreachable, 5 partly done, 130 interrupted.`,
		Example:       "  yardmaster dev\n  yardmaster planner --data-dir /var/lib/yardmaster\n  yardmaster worker --role decode",
		Version:       a.versionLine(),
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRun: func(*cobra.Command, []string) {
			a.began = true
		},
	}
	root.SetFlagErrorFunc(unknownFlag)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetVersionTemplate("{{.Version}}\n")
	root.PersistentFlags().StringVar(&a.file, "config", "", "configuration file (YAML); "+config.EnvFile+" names one too")
	root.AddCommand(a.benchCommand(), a.clusterCommand(), a.configCommand(), a.devCommand(), a.explainCommand(), a.gatewayCommand(), a.modelCommand(), a.plannerCommand(), a.policyCommand(), a.policyChildCommand(), a.scaleCommand(), a.quotaCommand(), a.workerCommand(), a.versionCommand())
	return root
}

func (a *app) versionLine() string {
	return fmt.Sprintf("yardmaster %s (%s, %s %s/%s)", a.version, a.revision(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// noun is a command that only groups verbs.
func noun(name, short string, verbs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use:   name,
		Short: short,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			text := fmt.Sprintf("unknown command %q for %q", args[0], c.CommandPath())
			if near := c.SuggestionsFor(args[0]); len(near) > 0 {
				text += fmt.Sprintf("; did you mean %q?", near[0])
			}
			return usage(errors.New(text))
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.SuggestionsMinimumDistance = 2
	c.AddCommand(verbs...)
	return c
}

// load reads the settings of a command and says what looks odd.
func (a *app) load(flags *config.Flags) (*config.Effective, error) {
	e, err := config.Load(config.Sources{File: a.configFile(), Env: a.environ, Flags: flags})
	if err != nil {
		return nil, err
	}
	for _, w := range e.Warnings {
		fmt.Fprintf(a.err, "yardmaster: warning: %s\n", w)
	}
	return e, nil
}

// configFile is the file that the flag names, or else the environment; it may
// be empty.
func (a *app) configFile() string {
	if a.file != "" {
		return a.file
	}
	return lookup(a.environ, config.EnvFile)
}

func lookup(environ []string, name string) string {
	for _, entry := range environ {
		if key, value, ok := strings.Cut(entry, "="); ok && key == name {
			return value
		}
	}
	return ""
}

// process is what the parts of this process share.
func (a *app) process(c config.Log) assemble.Process {
	p := assemble.NewProcess(a.version, a.logger(c))
	if self, err := os.Executable(); err == nil {
		p.PolicyChild = []string{self, vet.ChildCommand}
		p.Worker = []string{self, "worker"}
		if file := a.configFile(); file != "" {
			p.Worker = append(p.Worker, "--config", file)
		}
	} else {
		p.Log.Warn("policies are compiled in this process, since its own file is not known", "error", err)
	}
	return p
}

// logger builds the process's log on stderr. run closes it.
func (a *app) logger(c config.Log) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		level = slog.LevelInfo // the table admits no other spelling
	}
	a.log = logline.New(a.err, logline.Options{Level: level, JSON: c.Format == "json"})
	return slog.New(a.log)
}
