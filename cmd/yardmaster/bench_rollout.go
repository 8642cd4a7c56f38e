package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/cmd/internal/bench/rollout"
	"github.com/yardmaster/yardmaster/plugins-sdk/templates"
	"github.com/yardmaster/yardmaster/policies/project"
)

func (a *app) benchRollout() *cobra.Command {
	var out output
	var opts rollout.Options
	var built string
	c := &cobra.Command{
		Use:   "rollout",
		Short: "Measure policies that change under load",
		Long: `Start three planners, gateways and workers with scripted engines as processes of
this program on loopback, be their client and their operator, and measure:

push     from an upload until every node decides by it: a module of 4 KB, within a
         second, and one built by Go, of 2 MB, within five
swaps    --rate decisions a second while a policy is promoted and rolled back --swaps
         times. No request may fail, and none be decided by another version than the
         one that was bound at the log index its answer names
reloads  --reloads versions, each pushed, compiled and loaded by every node, bound, and
         deleted after its successor: the nodes' memory stays as it was

The module in Go is the SDK's template, built here if there is a go, or --go-module.
The exit code is 1 when something is not as said. Other load on the machine shows in
every figure.`,
		Example: `  yardmaster bench rollout -o json
  yardmaster bench rollout --part swaps --rate 500
  yardmaster bench rollout --part push --go-module policy.wasm`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			ctx, stop := interruptible(c.Context())
			defer stop()
			if opts.Program, err = os.Executable(); err != nil {
				return err
			}
			if opts.Go, err = a.moduleByGo(ctx, built); err != nil {
				return err
			}
			r, err := rollout.Run(ctx, opts, func(what string) { _, _ = fmt.Fprintln(a.err, what) })
			if err != nil {
				return interruptedOr(ctx, err)
			}
			if err := out.print(a.out, r, []string{"FIGURE", "VALUE"}, rolloutRows(&r)); err != nil {
				return err
			}
			return missed(r.Missed())
		},
	}
	c.Flags().StringSliceVar(&opts.Parts, "part", nil, "what to measure, of "+strings.Join(rollout.Parts(), ", ")+"; default all")
	c.Flags().StringVar(&opts.Dir, "dir", "", "folder for the nodes' files; default: the system's for temporary files")
	c.Flags().IntVar(&opts.Gateways, "gateways", 2, "gateways")
	c.Flags().IntVar(&opts.Rate, "rate", 2000, "decisions a second, of all gateways together")
	c.Flags().IntVar(&opts.Swaps, "swaps", 100, "times that a policy is promoted and rolled back")
	c.Flags().IntVar(&opts.Reloads, "reloads", 1000, "versions, one after the other")
	c.Flags().IntVar(&opts.Pushes, "pushes", 5, "uploads of the small module")
	c.Flags().IntVar(&opts.GoPushes, "go-pushes", 2, "uploads of the module built by Go")
	c.Flags().StringVar(&built, "go-module", "", "a router built by Go; default: the template, built here")
	out.flag(c)
	return c
}

// moduleByGo is the file's module, or the template built here; nil where there is no
// toolchain.
func (a *app) moduleByGo(ctx context.Context, file string) (module []byte, err error) {
	if file != "" {
		return moduleAt(file)
	}
	dir, err := os.MkdirTemp("", "yardmaster-module-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	dir = filepath.Join(dir, "bench")
	if err := templates.New(dir, "go", "bench"); err != nil {
		return nil, err
	}
	lang, err := project.Language(dir)
	if err != nil || project.Lacking(dir, lang) != "" {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, buildTime)
	defer cancel()
	return project.Build(ctx, dir, project.Options{})
}

func rolloutRows(r *rollout.Result) [][]string {
	var rows [][]string
	row := func(what, format string, values ...any) {
		rows = append(rows, []string{what, fmt.Sprintf(format, values...)})
	}
	uploads := func(what string, u *rollout.Uploads) {
		for i := range u.ActiveMS {
			row(fmt.Sprintf("%s of %d bytes: answered, active on every node", what, u.Bytes), "%s, %s", milliseconds(u.PushMS[i]), milliseconds(u.ActiveMS[i]))
		}
	}
	if p := r.Push; p != nil {
		uploads("push", &p.Small)
		if p.Go != nil {
			uploads("push by Go", p.Go)
		}
	}
	if s := r.Swaps; s != nil {
		row("changes of the binding: p50, longest", "%d: %s, %s", s.Changes, milliseconds(s.ChangeP50MS), milliseconds(s.ChangeMaxMS))
		row("decisions, a second", "%d, %.0f", s.Decisions, s.PerS)
		row("requests that failed", "%d", s.Failed)
		row("decisions by another version than the bound one, by an older binding than before", "%d, %d", s.Wrong, s.Back)
		row("decisions after their binding's end was answered: p99, longest", "%d: %s, %s", s.Late, milliseconds(s.LateP99MS), milliseconds(s.LateMaxMS))
	}
	if l := r.Reloads; l != nil {
		row("versions loaded, seconds", "%d, %.0f", l.Count, l.Seconds)
		for _, n := range l.Nodes {
			row("memory of "+n.Node+": before, after half, at the end", "%.1f, %.1f, %.1f MiB", mib(n.Start), mib(n.Half), mib(n.End))
		}
	}
	row("load of the machine, of its cores", "%.1f to %.1f, of %d", r.Machine.LoadBefore, r.Machine.LoadAfter, r.Machine.Cores)
	return rows
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }
