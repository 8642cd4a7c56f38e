package main

import (
	"context"
	"errors"
	"sync"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/cmd/internal/assemble"
	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/cmd/internal/timerslack"
)

func (a *app) plannerCommand() *cobra.Command {
	var flags *config.Flags
	c := &cobra.Command{
		Use:   "planner",
		Short: "Keep the fleet's state, take workers' registrations, and serve clients",
		Long: `Keep the fleet's state in a data folder, take workers' registrations, and serve
clients from the same process. With --gateway=false it serves no clients, and
/livez, /readyz and /metrics are on --gateway-admin, a loopback address.

A planner without --join is a cluster of one, which others can join later: they
need a copy of its token file, cluster.token in the data folder, and its address:

  yardmaster planner --id planner-1 --data-dir state --token-file cluster.token --join 10.0.0.1:8092 \
    --peer-listen 10.0.0.2:8092 --listen 10.0.0.2:8090 --tls-plaintext --gateway=false

Three planners found a cluster together when all are started alike, in any order,
with one token file (yardmaster cluster token new makes it):

  yardmaster planner --id planner-0 --data-dir state --token-file cluster.token \
    --bootstrap-expect 3 --join 10.0.0.1:8092,10.0.0.2:8092,10.0.0.3:8092 --peer-listen 10.0.0.1:8092 \
    --listen 10.0.0.1:8090 --tls-plaintext --gateway=false

A planner that was a member finds the others again by its data folder.

SIGTERM drains: /readyz fails, running requests finish, leadership is handed on. A
second signal ends it at once.`,
		Example: `  yardmaster planner --data-dir /var/lib/yardmaster
  yardmaster planner --data-dir state --gateway-listen :8080 --tls-cert p.pem --tls-key p.key --tls-ca ca.pem --listen :8090
  yardmaster planner --id planner-1 --data-dir state --token-file cluster.token --join 10.0.0.1:8092 --peer-listen 10.0.0.2:8092 --listen 10.0.0.2:8090 --tls-plaintext --gateway=false`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if a.raise != nil {
				_ = a.raise(timerslack.Ours) // it costs more without, and that is all
			}
			e, err := a.load(flags)
			if err != nil {
				return err
			}
			if e.Config.Planner.DataDir == "" {
				return usage(errors.New("planner.data-dir is empty: say with --data-dir where the planner's state is kept"))
			}
			return a.runPlanner(c.Context(), e)
		},
	}
	flags = bind(c, config.Use{Section: "planner"}, config.Use{Section: "cluster"},
		config.Use{Section: "gateway", Prefix: "gateway-", Except: []string{"id", "engine"}},
		config.Use{Section: "policy", Prefix: "policy-"}, config.Use{Section: "scale", Prefix: "scale-"},
		config.Use{Section: "log", Prefix: "log-"}, config.Use{Section: "tls", Prefix: "tls-"})
	return c
}

func (a *app) runPlanner(ctx context.Context, e *config.Effective) error {
	quit, force, signals := watchSignals(ctx)
	defer signals.close()
	c := &e.Config
	stderr := &lockedWriter{w: a.err}
	a.err = stderr
	p := a.process(c.Log)
	p.Settings, p.Output = e.Settings, stderr
	planner, err := assemble.StartVoter(quit, p, c)
	if errors.Is(err, context.Canceled) && quit.Err() != nil {
		return signals.outcome(nil) // stopped before it had started
	}
	if err != nil {
		return signals.outcome(err)
	}
	p.Log.Info("planner started", "workers", planner.Addr(), "peers", planner.PeerAddr(), "admin", planner.AdminURL())
	var told sync.WaitGroup
	defer told.Wait()
	told.Go(func() {
		if planner.WaitReady(quit) == nil {
			p.Log.Info("planner ready", "id", c.Planner.ID, "cluster", planner.ClusterID())
		}
	})
	var gateway *assemble.Gateway
	var failed <-chan error
	if c.Planner.Gateway {
		if gateway, err = assemble.StartGateway(quit, p, c.Gateway, planner); err != nil {
			return errors.Join(err, drain(force, c.Gateway.DrainTimeout, planner.Close))
		}
		failed = gateway.Failed()
		p.Log.Info("gateway ready", "url", gateway.URL())
	}
	err = waitFor(quit, planner.Failed(), failed)
	sayDraining(quit, p)
	return signals.outcome(errors.Join(err, drain(force, c.Gateway.DrainTimeout, func(ctx context.Context) error {
		var fault error
		if gateway != nil {
			fault = gateway.Close(ctx)
		}
		return errors.Join(fault, planner.Close(ctx))
	})))
}

// sayDraining logs that a signal has come and what follows.
func sayDraining(quit context.Context, p assemble.Process) {
	if quit.Err() != nil {
		p.Log.Info("draining; a second signal ends it at once")
	}
}

// waitFor returns at the first signal, or with the error of a part that ended
// by itself.
func waitFor(quit context.Context, planner, gateway <-chan error) error {
	select {
	case <-quit.Done():
		return nil
	case err := <-planner:
		return err
	case err := <-gateway:
		return err
	}
}
