package assemble

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/lead"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/raftstore/transport"
	"github.com/yardmaster/yardmaster/server/admin"
	"github.com/yardmaster/yardmaster/server/control"
	"github.com/yardmaster/yardmaster/server/hub"
)

// Planner is a voting member of the replicated state, with the port where workers
// register.
type Planner struct {
	store     *raftstore.Store
	node      *node          // nil alone
	leader    *leaderControl // nil alone
	leases    *lead.Leases
	server    *control.Server
	hub       *hub.Server  // nil alone
	admin     *adminServer // nil without one
	governing *governor    // nil before it is started
	scaling   scaling
	// background runs a task until the planner ends; set by start.
	background func(task func(context.Context))
	addr       string
	cancel     context.CancelFunc
	tasks      sync.WaitGroup
	log        func(msg string, args ...any)

	mu     sync.Mutex
	link   *hub.Link // of this process's gateway; nil before it has one
	failed chan error
}

// leaderWait is how long a planner that is alone may take to lead.
const leaderWait = 10 * time.Second

// StartPlanner starts a planner that is alone for ever: it has no peer port, and
// no admin API before a gateway brings one. It returns when it leads and takes
// workers. An empty data folder keeps everything in memory.
func StartPlanner(ctx context.Context, p Process, c *config.Config) (*Planner, error) {
	store, err := raftstore.Open(ctx, raftstore.Config{
		Dir: c.Planner.DataDir, InMemory: c.Planner.DataDir == "", NodeID: c.Planner.ID, Version: p.Version, Prefix: prefixOptions(),
		Registry: p.Registry, Logger: p.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("planner.data-dir: %w", err)
	}
	out := &Planner{store: store, leases: leasesOf(c.Planner)}
	if err := out.govern(ctx, p, c); err != nil {
		return nil, out.abandon(ctx, err)
	}
	out.prepareScaling(p, c.Scale)
	if err := out.start(ctx, p, c.Planner, c.TLS); err != nil {
		return nil, out.abandon(ctx, err)
	}
	return out, out.lead(ctx)
}

// StartVoter starts a planner of a cluster: alone at first, or with others. It
// returns when workers can call; the cluster may form later, and how far that is
// the admin API says. Should it be the only planner, it leads when it returns.
func StartVoter(ctx context.Context, p Process, c *config.Config) (*Planner, error) {
	operators, err := listenAdmin(ctx, p, c.Gateway.Admin)
	if err != nil {
		return nil, err
	}
	trust, err := trustOf(c.Policy)
	if err != nil {
		operators.close()
		return nil, err
	}
	node, err := enter(ctx, p, membership{
		ID: c.Planner.ID, Dir: c.Planner.DataDir, Voter: true, Admin: operators.address(), Cluster: c.Cluster, Trust: trust,
	})
	if err != nil {
		operators.close()
		return nil, err
	}
	out := &Planner{
		store: node.store(), node: node, admin: operators, leader: &leaderControl{store: node.store(), port: node.port},
		leases: leasesOf(c.Planner),
	}
	if err := out.govern(ctx, p, c); err != nil {
		return nil, out.abandon(ctx, err)
	}
	out.prepareScaling(p, c.Scale)
	parts := admin.Parts{
		Cluster: operator{node.store, c.Planner.DataDir}, Workers: crew(p, out, operators.dispatcher),
		Policies: out.governing.operator(p, node.store),
		Quotas:   quotaOperator{node.store}, Scale: out.scale(p),
	}
	if !c.Planner.Gateway {
		parts.Ready = out.ready
	}
	operators.serve(p, parts)
	if err := out.start(ctx, p, c.Planner, c.TLS); err != nil {
		return nil, out.abandon(ctx, err)
	}
	out.startProcesses(p, c)
	if _, members := out.store.Members(); len(members) <= 1 && len(c.Cluster.Join) == 0 {
		return out, out.lead(ctx)
	}
	return out, nil
}

// govern starts following what is bound of policies.
func (p *Planner) govern(ctx context.Context, process Process, c *config.Config) (err error) {
	own := func() *raftstore.Store { return p.store }
	p.governing, err = govern(ctx, process, c.Policy, c.Planner.DataDir, byItself, bound{view: own, live: own})
	if err == nil && c.Scale.On() {
		p.governing.configure(rollout.Autoscaler, c.Scale.Policy)
	}
	return err
}

// quotas is where tenants' quotas are.
func (p *Planner) quotas() *raftstore.Store { return p.store }

// governor is the policies of this process, which a gateway's decisions follow.
func (p *Planner) governor() *governor { return p.governing }

func leasesOf(c config.Planner) *lead.Leases {
	return lead.NewLeases(lead.Config{TTL: c.LeaseTTL, RenewEvery: c.LeaseTTL / 3})
}

// start serves workers and begins the leader's duties.
func (p *Planner) start(ctx context.Context, process Process, c config.Planner, security config.TLS) error {
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p.cancel, p.failed = cancel, make(chan error, 4)
	p.background = func(task func(context.Context)) { p.tasks.Go(func() { task(run) }) }
	p.log = process.Log.Info
	tlsConfig, err := mutualTLS(security)
	if err != nil {
		return err
	}
	index := newStorePrefix(process, p.store)
	settings := control.Config{
		Planner: p.store, Leases: p.leases, Prefix: index, Clock: process.Clock, Logger: process.Log,
		TLS: tlsConfig, AllowPlaintext: security.Plaintext,
	}
	if p.node != nil {
		settings.Leader, settings.PeerOptions = p.leader.client, transport.GRPCServerOptions()
	}
	if p.server, err = control.New(settings); err != nil {
		return err
	}
	ln, err := listen(ctx, c.Listen, "planner.listen")
	if err != nil {
		return err
	}
	p.addr = ln.Addr().String()
	p.serve("planner.listen", func() error { return p.server.Serve(ln) })
	if err := p.startHub(process); err != nil {
		return err
	}
	p.tasks.Go(func() {
		lead.Run(run, lead.Duties{Planner: p.store, Leases: p.leases, Clock: process.Clock, Registry: process.Registry, Logger: process.Log})
	})
	p.tasks.Go(func() {
		lead.RunPrefix(run, lead.PrefixDuties{
			State: index.State(), Propose: index.Propose, View: p.store.View, Leading: p.store.LeadingPrefix,
			Clock: process.Clock, Registry: process.Registry, Logger: process.Log,
		})
	})
	p.startScaling(process) //nolint:contextcheck // stop ends it
	p.tasks.Go(func() {
		select {
		case <-p.store.Faulted():
			p.failed <- stopped(p.store.Fault())
		case <-run.Done():
		}
	})
	return nil
}

// stopped is a store's fault with what to do about it, where that is to start the
// process again. A supervisor does so anyway.
func stopped(fault error) error {
	for _, final := range []error{raftstore.ErrRemoved, raftstore.ErrIDInUse, raftstore.ErrOtherCluster, raftstore.ErrDamaged} {
		if errors.Is(fault, final) {
			return fmt.Errorf("planner: %w", fault)
		}
	}
	return fmt.Errorf("planner: start it again: %w", fault)
}

// serve runs one listener until it ends, which is a failure of the planner unless
// it was told to.
func (p *Planner) serve(what string, accept func() error) {
	p.tasks.Go(func() {
		if err := accept(); err != nil && !errors.Is(err, net.ErrClosed) {
			p.failed <- fmt.Errorf("%s: %w", what, err)
		}
	})
}

// startHub serves what members want of the leader.
func (p *Planner) startHub(process Process) (err error) {
	if p.node == nil {
		return nil
	}
	p.hub, err = hub.NewServer(hub.ServerConfig{
		Leading: p.store.Leading, View: p.store.View, Samples: p.leases.Samples, Traffic: p.scaling.traffic, Peer: transport.PeerID,
		Options: transport.GRPCServerOptions(), Registry: process.Registry, Clock: process.Clock, Logger: process.Log,
	})
	if err != nil {
		return err
	}
	p.serve("load hub", func() error { return p.hub.Serve(p.node.port.Listener(transport.ProtoHub)) })
	p.serve("control between planners", func() error { return p.server.ServePeers(p.node.port.Listener(protoControl)) })
	return nil
}

// lead returns when the planner leads; it ends the planner when it cannot.
func (p *Planner) lead(ctx context.Context) error {
	wait, stop := context.WithTimeout(ctx, leaderWait)
	defer stop()
	if err := p.store.WaitLeader(wait); err != nil {
		return p.abandon(ctx, fmt.Errorf("planner: does not come to lead: %w", err))
	}
	select {
	case err := <-p.failed:
		return p.abandon(ctx, err)
	default:
		return nil
	}
}

// abandonTime bounds the end of a planner that has not started.
const abandonTime = 10 * time.Second

// abandon ends a planner that does not start. When ctx has ended that is why, and no
// fault of the planner's: the error is then ctx's, unless it did not end well.
func (p *Planner) abandon(ctx context.Context, why error) error {
	bounded, stop := context.WithTimeout(context.WithoutCancel(ctx), abandonTime)
	defer stop()
	fault := p.Close(bounded)
	switch {
	case ctx.Err() == nil:
		return errors.Join(why, fault)
	case fault != nil:
		return fault
	default:
		return ctx.Err()
	}
}

// WaitReady returns when the planner is in a cluster and has caught up with it, or
// with ctx's error or its fault.
func (p *Planner) WaitReady(ctx context.Context) error { return p.store.WaitReady(ctx) }

// ClusterID names the planner's cluster; empty while it is in none.
func (p *Planner) ClusterID() string { return p.store.ClusterID() }

// Addr is where workers register, host:port.
func (p *Planner) Addr() string { return p.addr }

// PeerAddr is where other members call, host:port; empty alone.
func (p *Planner) PeerAddr() string {
	if p.node == nil {
		return ""
	}
	return p.node.port.Addr().String()
}

// AdminURL is the root of the admin API; empty when there is none.
func (p *Planner) AdminURL() string { return p.admin.url() }

// ready is why this planner's view cannot be relied on, nil when it can. It stays
// so when other planners are gone.
func (p *Planner) ready() error {
	if err := p.store.Fault(); err != nil {
		return err
	}
	return p.store.Ready()
}

// news is nothing: a planner's view is its own.
func (p *Planner) news() string { return "" }

// View is the fleet.
func (p *Planner) View() *fleet.View { return p.store.View() }

// Samples is what workers last said of themselves, to this planner or to the
// leader.
func (p *Planner) Samples() *fleet.Samples {
	p.mu.Lock()
	link := p.link
	p.mu.Unlock()
	if link != nil {
		return link.Samples()
	}
	return p.leases.Samples()
}

// Prefix is the planner's prefix state: [prefix.State.Table] has the index and
// which of its numbers means which worker.
func (p *Planner) Prefix() *prefix.State { return p.store.Prefix() }

// Events is the index of what workers said they hold.
func (p *Planner) Events() *prefix.Table { return p.store.Prefix().Table() }

// share has this process's gateway and the others' know of each other.
func (p *Planner) share(process Process, table *load.Table) (*hub.Link, error) {
	if p.node == nil {
		p.keepTraffic(process)
		return nil, nil
	}
	link, err := p.node.gatewayLoad(process, table, p.store.View, p.hub)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.link = link
	return link, nil
}

// operate puts the process's gateway on its admin API, if it has one.
func (p *Planner) operate(d *dispatch.Dispatcher) bool {
	if p.node == nil {
		return false
	}
	if p.admin != nil {
		p.admin.gateway.Store(d)
	}
	return true
}

// Failed delivers why the planner no longer takes workers or changes, should
// that come to be. What it knows can still be read.
func (p *Planner) Failed() <-chan error { return p.failed }

// handOver is how much of a planner's last moments may go to finding a successor,
// which takes milliseconds when there is one. The store tries once more.
const handOver = 500 * time.Millisecond

// Close ends the planner within ctx. One that leads others hands leadership on
// first.
func (p *Planner) Close(ctx context.Context) error {
	p.stepDown(ctx)
	stopped := p.scaling.stop(ctx)
	p.governing.end() //nolint:contextcheck // it has time of its own
	if p.hub != nil {
		p.hub.Close(ctx)
	}
	if p.server != nil {
		p.server.Close(ctx)
	}
	p.admin.close()
	if p.leader != nil {
		p.leader.close()
	}
	if p.cancel != nil {
		p.cancel()
	}
	if p.node == nil {
		p.tasks.Wait()
		return errors.Join(stopped, p.store.Close(ctx))
	}
	err := p.node.close(ctx)
	p.tasks.Wait()
	return errors.Join(stopped, err)
}

// stepDown hands leadership on if there is anybody to take it.
func (p *Planner) stepDown(ctx context.Context) {
	if p.node == nil || !p.store.Leading() && !p.store.LeadingPrefix() {
		return
	}
	voters := 0
	_, members := p.store.Members()
	for _, m := range members {
		if m.Voter {
			voters++
		}
	}
	if voters < 2 {
		return
	}
	// Also when draining took all the time there was: this takes milliseconds.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), handOver)
	defer cancel()
	if err := p.store.StepDown(ctx); err != nil {
		p.log("nobody took over before the end; the others will elect", "error", err)
		return
	}
	p.log("leadership handed on")
}
