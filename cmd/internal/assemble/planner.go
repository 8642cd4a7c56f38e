package assemble

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/lead"
	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/server/admin"
	"github.com/yardmaster/yardmaster/server/control"
)

// Planner is a member of the replicated core, with the port where workers
// register.
type Planner struct {
	store  *raftstore.Store
	leases *lead.Leases
	prefix *localPrefix
	server *control.Server
	admin  *adminServer // nil without one
	addr   string
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	failed chan error
}

// leaderWait is how long a planner may take to lead its own cluster.
const leaderWait = 10 * time.Second

// StartPlanner opens the planner's state, waits until it leads and takes
// workers. An empty data folder keeps everything in memory.
func StartPlanner(ctx context.Context, p Process, c config.Planner, security config.TLS) (*Planner, error) {
	tlsConfig, err := mutualTLS(security)
	if err != nil {
		return nil, err
	}
	ln, err := listen(ctx, c.Listen, "planner.listen")
	if err != nil {
		return nil, err
	}
	store, err := raftstore.Open(ctx, raftstore.Config{
		Dir: c.DataDir, InMemory: c.DataDir == "", NodeID: c.ID,
		Registry: p.Registry, Logger: p.Log,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("planner.data-dir: %w", err), ln.Close())
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	out := &Planner{store: store, prefix: newLocalPrefix(p), addr: ln.Addr().String(), cancel: cancel, failed: make(chan error, 2)}
	out.leases = lead.NewLeases(lead.Config{TTL: c.LeaseTTL, RenewEvery: c.LeaseTTL / 3})
	out.server, err = control.New(control.Config{
		Planner: store, Leases: out.leases, Prefix: out.prefix, Clock: p.Clock, Logger: p.Log,
		TLS: tlsConfig, AllowPlaintext: security.Plaintext,
	})
	if err != nil {
		return nil, errors.Join(err, ln.Close(), out.Close(ctx))
	}
	out.tasks.Go(func() {
		lead.Run(run, lead.Duties{Planner: store, Leases: out.leases, Clock: p.Clock, Registry: p.Registry, Logger: p.Log})
	})
	out.tasks.Go(func() { out.prefix.run(run, p, store) })
	out.tasks.Go(func() {
		if err := out.server.Serve(ln); err != nil {
			out.failed <- fmt.Errorf("planner.listen: %w", err)
		}
	})
	out.tasks.Go(func() {
		select {
		case <-store.Faulted():
			out.failed <- fmt.Errorf("planner: start it again: %w", store.Fault())
		case <-run.Done():
		}
	})
	wait, stop := context.WithTimeout(ctx, leaderWait)
	defer stop()
	if err := store.WaitLeader(wait); err != nil {
		return nil, errors.Join(fmt.Errorf("planner: does not come to lead: %w", err), out.Close(ctx))
	}
	select {
	case err := <-out.failed:
		return nil, errors.Join(err, out.Close(ctx))
	default:
		return out, nil
	}
}

// Addr is where workers register, host:port.
func (p *Planner) Addr() string { return p.addr }

// ServeStatus answers probes and shows metrics on addr, a loopback address, for a
// planner without a gateway that would. It returns the API's root; empty when
// addr is, or when another process has the default address.
func (p *Planner) ServeStatus(ctx context.Context, process Process, addr string) (url string, err error) {
	p.admin, err = startAdmin(ctx, process, addr, admin.Handler(admin.Parts{Registry: process.Registry, Ready: p.ready}))
	if err != nil || p.admin == nil {
		return "", err
	}
	return "http://" + p.admin.addr, nil
}

var errNoLeader = errors.New("this planner does not lead")

// ready is why workers cannot register here, nil when they can.
func (p *Planner) ready() error {
	if err := p.store.Fault(); err != nil {
		return err
	}
	if !p.store.Leading() {
		return errNoLeader
	}
	return nil
}

// View is the fleet.
func (p *Planner) View() *fleet.View { return p.store.View() }

// Samples is what workers last said of themselves.
func (p *Planner) Samples() *fleet.Samples { return p.leases.Samples() }

// Failed delivers why the planner no longer takes workers or changes, should
// that come to be. What it knows can still be read.
func (p *Planner) Failed() <-chan error { return p.failed }

// Close ends the planner within ctx.
func (p *Planner) Close(ctx context.Context) error {
	if p.server != nil {
		p.server.Close(ctx)
	}
	if p.admin != nil {
		p.admin.close()
	}
	p.cancel()
	p.tasks.Wait()
	return p.store.Close(ctx)
}
