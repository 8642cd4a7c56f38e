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
		Short: "Serve engines by URL, without planners",
		Long: `Serve OpenAI-compatible engines that are given by URL, as a drop-in router:
placement, failover and metrics, without planners and without disaggregation.`,
		Example: "  yardmaster gateway --engine http://10.0.0.1:8000 --engine http://10.0.0.2:8000 --listen :8080",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			e, err := a.load(flags)
			if err != nil {
				return err
			}
			return a.runGateway(c.Context(), &e.Config)
		},
	}
	flags = bind(c, config.Use{Section: "gateway"}, config.Use{Section: "log", Prefix: "log-"})
	return c
}

func (a *app) runGateway(ctx context.Context, c *config.Config) error {
	quit, force, signals := watchSignals(ctx)
	defer signals.close()
	p := assemble.NewProcess(a.version, a.logger(c.Log))
	gateway, err := assemble.StartStaticGateway(quit, p, c.Gateway)
	if err != nil {
		return signals.outcome(err)
	}
	p.Log.Info("gateway ready", "url", gateway.URL(), "engines", len(c.Gateway.Engines))
	err = waitFor(quit, nil, gateway.Failed())
	sayDraining(quit, p)
	return signals.outcome(errors.Join(err, drain(force, c.Gateway.DrainTimeout, gateway.Close)))
}
