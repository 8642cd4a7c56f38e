package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/cmd/internal/assemble"
	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/gpu/launch"
)

func (a *app) workerCommand() *cobra.Command {
	var flags *config.Flags
	var leash bool
	c := &cobra.Command{
		Use:   "worker",
		Short: "Host an engine and serve it to the fleet",
		Long: `Host an engine, register it with a planner, and compute what gateways send.
Give several planners of one cluster to --planner: any of them will do, and one
that is gone is passed over. On a machine of its own it needs a --listen and a
--transfer that the others reach, and either certificates (--tls-cert and so on, with
--plain-api) or, on a network that is trusted, --tls-plaintext.

SIGTERM drains: the worker takes nothing new, finishes what it has and leaves.
A second signal ends it at once.`,
		Example: `  yardmaster worker --id prefill-0 --role prefill --model smollm2
  yardmaster worker --id decode-0 --role decode --planner 10.0.0.1:8090,10.0.0.2:8090,10.0.0.3:8090 --listen 10.0.0.11:8000 --transfer 10.0.0.11:8001 --tls-plaintext
  yardmaster worker --role decode --model models/llama.gguf --threads 8
  yardmaster worker --engine scripted --script faults.yaml --planner ""`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			e, err := a.load(flags)
			if err != nil {
				return err
			}
			return a.runWorker(c.Context(), &e.Config, leash)
		},
	}
	flags = bind(c, config.Use{Section: "worker"},
		config.Use{Section: "log", Prefix: "log-"}, config.Use{Section: "tls", Prefix: "tls-"})
	c.Flags().BoolVar(&leash, "leash", false, "end when standard input does: the parent is gone")
	hide(c, "leash")
	c.AddCommand(a.workerList())
	return c
}

// hide takes a flag that only Yardmaster itself gives out of the help.
func hide(c *cobra.Command, flag string) {
	if err := c.Flags().MarkHidden(flag); err != nil {
		panic(err) // the flag was defined a line above
	}
}

func (a *app) runWorker(ctx context.Context, c *config.Config, leash bool) error {
	quit, force, signals := watchSignals(ctx)
	defer signals.close()
	p := a.process(c.Log)
	w, err := assemble.StartWorker(quit, p, c.Worker, c.TLS)
	if err != nil {
		return signals.outcome(err)
	}
	var orphaned <-chan struct{}
	if leash {
		orphaned = launch.ParentGone(a.in)
	}
	select {
	case <-quit.Done():
		p.Log.Info("draining; a second signal ends the worker at once")
	case <-w.DrainWanted():
		p.Log.Info("draining, as the planner wants")
	case <-orphaned:
		p.Log.Warn("the parent process is gone")
		signals.cancel()
	}
	return signals.outcome(drain(force, c.Worker.DrainTimeout, w.Close))
}

// drain closes a part within timeout, or until the second signal. What was cut
// off is no failure of the command: the user asked for it.
func drain(force context.Context, timeout time.Duration, closePart func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(force, timeout)
	defer cancel()
	err := closePart(ctx)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &codedError{code: exitPartial, err: errors.New("some requests did not finish before the end")}
	}
	return err
}
