package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/cmd/internal/assemble"
	"github.com/yardmaster/yardmaster/cmd/internal/config"
)

func (a *app) gatewayCommand() *cobra.Command {
	var flags *config.Flags
	c := &cobra.Command{
		Use:   "gateway",
		Short: "Serve clients: the fleet of planners, or engines by URL",
		Long: `Serve clients, in one of two ways.

With --join, serve the workers that are registered with planners: as a member of
their cluster that does not vote, it has all they know in its own memory, and goes
on with that when they are gone. It proves itself by a copy of their token file.

With --engine, serve OpenAI-compatible engines that are given by URL, as a drop-in
router: placement, failover and metrics, without planners and without
disaggregation.

SIGTERM drains: /readyz fails, running requests finish, the gateway leaves the
cluster. A second signal ends it at once.`,
		Example: `  yardmaster gateway --join 10.0.0.1:8092,10.0.0.2:8092 --token-file cluster.token --peer-listen 10.0.0.9:0 --listen 10.0.0.9:8080
  yardmaster gateway --engine http://10.0.0.1:8000 --engine http://10.0.0.2:8000 --listen :8080`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			e, err := a.load(flags)
			if err != nil {
				return err
			}
			return a.runGateway(c.Context(), e)
		},
	}
	flags = bind(c, config.Use{Section: "gateway"},
		config.Use{Section: "cluster", Except: []string{"bootstrap-expect", "reap-after"}},
		config.Use{Section: "policy", Prefix: "policy-"}, config.Use{Section: "log", Prefix: "log-"})
	return c
}

func (a *app) runGateway(ctx context.Context, e *config.Effective) error {
	quit, force, signals := watchSignals(ctx)
	defer signals.close()
	c := &e.Config
	p := a.process(c.Log)
	p.Settings = e.Settings
	gateway, err := startGateway(quit, p, c)
	if err != nil {
		return signals.outcome(err)
	}
	if n := len(c.Gateway.Engines); n > 0 {
		p.Log.Info("gateway ready", "url", gateway.URL(), "engines", n)
	} else {
		p.Log.Info("gateway ready", "url", gateway.URL(), "admin", gateway.AdminURL())
	}
	err = waitFor(quit, nil, gateway.Failed())
	sayDraining(quit, p)
	return signals.outcome(errors.Join(err, drain(force, c.Gateway.DrainTimeout, gateway.Close)))
}

// startGateway starts the kind that the settings ask for.
func startGateway(ctx context.Context, p assemble.Process, c *config.Config) (*assemble.Gateway, error) {
	switch joins, engines := len(c.Cluster.Join) > 0, len(c.Gateway.Engines) > 0; {
	case joins && engines:
		return nil, usage(errors.New("gateway.engine and cluster.join contradict one another: a gateway serves engines by URL, or the planners' fleet"))
	case joins:
		return assemble.StartJoinedGateway(ctx, p, c)
	default:
		return assemble.StartStaticGateway(ctx, p, c)
	}
}
