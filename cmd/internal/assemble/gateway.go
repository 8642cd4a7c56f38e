package assemble

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/prompt"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/gpu/engine/cpu"
	"github.com/yardmaster/yardmaster/gpu/engine/openai"
	"github.com/yardmaster/yardmaster/server"
	"github.com/yardmaster/yardmaster/server/admin"
	"github.com/yardmaster/yardmaster/server/hub"
	frontdoor "github.com/yardmaster/yardmaster/server/openai"
	"github.com/yardmaster/yardmaster/server/sse"
)

// Fleet is where a gateway learns who can serve. A Planner is one.
type Fleet interface {
	View() *fleet.View
	// Samples is what workers last said of themselves; it may be nil.
	Samples() *fleet.Samples
	// Events is the index fed by workers' KV events; it may be nil.
	Events() *prefix.Table
}

// asking is a fleet that asks its workers itself. In others a worker that falls
// silent leaves the view.
type asking interface {
	// Answers reports whether a worker of the view answered when last asked.
	Answers(id fleet.WorkerID) bool
}

// sharing is a fleet whose gateways know of each other's requests.
type sharing interface {
	// share is this gateway's side of the load hub, to be run; nil where there is
	// none.
	share(p Process, table *load.Table) (*hub.Link, error)
}

// recovering is a fleet that is not known from the first moment.
type recovering interface {
	// ready is why the view cannot be relied on yet.
	ready() error
	// news is what is to be said of it besides; it may be empty.
	news() string
}

// operated is a fleet whose process may have an admin API before the gateway.
type operated interface {
	// operate puts the gateway on it and reports whether it did.
	operate(d *dispatch.Dispatcher) bool
}

// Gateway is the client API on its listener.
type Gateway struct {
	dispatcher *dispatch.Dispatcher
	server     *server.Server
	admin      *adminServer // nil without one of its own
	addr       string
	served     chan error
	after      []func() // what ends with the gateway
}

// ErrNoFleet means that a gateway has neither planners nor engines.
var ErrNoFleet = errors.New("a gateway needs engines: give --engine URL, once for each, or --join HOST:PORT for those of planners")

// StartStaticGateway serves the engines of the settings by URL, without
// planners. Policies in Wasm that the settings name by file decide from the start, or
// it does not start.
func StartStaticGateway(ctx context.Context, p Process, c *config.Config) (*Gateway, error) {
	if len(c.Gateway.Engines) == 0 {
		return nil, fmt.Errorf("gateway.engine: %w", ErrNoFleet)
	}
	settings := c.Gateway
	governing, err := governByFiles(ctx, p, c.Policy, &settings)
	if err != nil {
		return nil, fmt.Errorf("gateway.policy: %w", err)
	}
	f := startStaticFleet(ctx, p, settings.Engines)
	f.governing = governing
	g, err := StartGateway(ctx, p, settings, f)
	if err != nil {
		f.close() //nolint:contextcheck // ctx may be over, and ending needs time of its own
		return nil, err
	}
	g.after = append(g.after, f.close)
	return g, nil
}

// StartGateway serves the workers of f. It returns when the API answers.
func StartGateway(ctx context.Context, p Process, c config.Gateway, f Fleet) (*Gateway, error) {
	routing, err := routing(c)
	if err != nil {
		return nil, err
	}
	ln, err := listen(ctx, c.Listen, "gateway.listen")
	if err != nil {
		return nil, err
	}
	g := &Gateway{addr: ln.Addr().String(), served: make(chan error, 1)}
	err = g.build(p, c, routing, f) //nolint:contextcheck // requests have contexts of their own
	if err == nil {
		err = g.startAdmin(ctx, p, c.Admin, f)
	}
	if err != nil {
		g.end()
		return nil, errors.Join(err, ln.Close())
	}
	go func() { //nolint:contextcheck // requests have contexts of their own
		if err := g.server.Serve(ln); err != nil {
			g.served <- fmt.Errorf("gateway.listen: %w", err)
		}
	}()
	return g, nil
}

// startAdmin puts the gateway on the fleet's admin API, or on one of its own.
func (g *Gateway) startAdmin(ctx context.Context, p Process, addr string, f Fleet) (err error) {
	if o, ok := f.(operated); ok && o.operate(g.dispatcher) {
		return nil
	}
	if g.admin, err = listenAdmin(ctx, p, addr); err != nil || g.admin == nil {
		return err
	}
	g.admin.gateway.Store(g.dispatcher)
	parts := admin.Parts{Workers: crew(p, f, g.admin.dispatcher)}
	if lone, ok := f.(*Planner); ok {
		parts.Policies, parts.Quotas = lone.governing.operator(p, lone.quotas), quotaOperator{lone.quotas}
		parts.Scale = lone.scale(p)
	}
	g.admin.serve(p, parts)
	g.after = append(g.after, g.admin.close)
	return nil
}

func routing(c config.Gateway) (route.Config, error) {
	if config.NamesModule(c.Policy) {
		return route.Config{}, fmt.Errorf("gateway.policy: %w", errPushed)
	}
	policy, err := route.PolicyNamed(c.Policy)
	if err != nil {
		return route.Config{}, fmt.Errorf("gateway.policy: %w", err)
	}
	mode, err := route.ParseMode(c.Disaggregate)
	if err != nil {
		return route.Config{}, fmt.Errorf("gateway.disaggregate: %w", err)
	}
	return route.Config{Policy: policy, Mode: mode, MinPrompt: unit.Tokens(c.MinPrompt)}, nil
}

func (g *Gateway) build(p Process, c config.Gateway, routing route.Config, f Fleet) (err error) {
	texts, err := Texts(p, c.Tokenizers)
	if err != nil {
		return err
	}
	var answers func(fleet.WorkerID) bool
	absent := "no worker is registered"
	if a, ok := f.(asking); ok {
		answers, absent = a.Answers, "no engine is reachable"
	}
	find, closeAdapters := adapters(openai.Config{Connect: c.ConnectTimeout})
	g.after = append(g.after, closeAdapters)
	deps := dispatch.Deps{
		View: f.View, Samples: f.Samples, Events: f.Events, Adapter: find, Reach: reach, Registry: p.Registry, Clock: p.Clock,
		Prompts: prompt.New(prompt.Options{Texts: texts, Clock: p.Clock, Registry: p.Registry}),
	}
	if err := admission(p, c, f, &deps); err != nil {
		return err
	}
	whose, err := openTenants(c)
	if err != nil {
		return err
	}
	conditions := checks(f)
	if by, ok := f.(governed); ok {
		conditions = append(conditions, by.governor().settle(&routing, c.Admission, &deps)...)
	}
	g.dispatcher, err = dispatch.New(dispatch.Config{
		Route: routing,
		Admit: admit.Config{MaxInFlight: c.MaxInFlight},
		Deadlines: dispatch.Deadlines{
			Total: c.RequestTimeout, FirstToken: c.FirstTokenTimeout, Idle: c.IdleTimeout,
			Queue: orNone(c.QueueTime), Hold: orNone(c.HoldTime),
		},
		Attempts: c.Attempts, MaxWaiting: c.QueueSize, RetryShare: orNone(float64(c.RetryPercent) / 100),
		Migrations: orNone(c.MigrationLimit), Patience: c.SuspectTime, Models: c.Models,
		Absent: absent,
	}, deps)
	if err != nil {
		return err
	}
	if err := g.startSharing(p, f); err != nil {
		return err
	}
	stream := sse.Config{Heartbeat: c.Heartbeat}
	if c.Heartbeat == 0 {
		stream.Heartbeat = -1
	}
	g.server, err = server.New(server.Config{
		OpenAI:  frontdoor.Config{MaxBody: c.MaxBody, MaxStops: c.MaxStops, MaxDepth: c.MaxDepth, Explain: c.Explain, Stream: stream},
		Unready: c.UnreadyTime, MaxHeader: int(c.MaxHeader),
	}, server.Deps{Dispatcher: g.dispatcher, View: f.View, Tenant: whose.serve(), Answers: answers, Absent: absent, Checks: conditions, Registry: p.Registry, Clock: p.Clock, Log: p.Log})
	if err != nil {
		return err
	}
	g.after = append(g.after, g.startHealing())
	return nil
}

// startSharing runs this gateway's side of the load hub until the gateway ends.
func (g *Gateway) startSharing(p Process, f Fleet) error {
	s, ok := f.(sharing)
	if !ok {
		return nil
	}
	link, err := s.share(p, g.dispatcher.Load())
	if err != nil || link == nil {
		return err
	}
	g.after = append(g.after, background(link.Run))
	return nil
}

// background runs f until the returned function is called, which waits for its end.
func background(f func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(ctx)
	}()
	return func() { cancel(); <-done }
}

// checks are the fleet's own conditions of readiness.
func checks(f Fleet) []server.Check {
	r, ok := f.(recovering)
	if !ok {
		return nil
	}
	return []server.Check{{Name: "view", Ready: r.ready, News: r.news}}
}

// orNone is v, or -1 where dispatch would read 0 as its default.
func orNone[T int | time.Duration | float64](v T) T {
	if v == 0 {
		return -1
	}
	return v
}

const (
	// probeEvery is how often a worker that accepted no connection is tried again.
	probeEvery = 200 * time.Millisecond
	// probeTime bounds one try.
	probeTime = 150 * time.Millisecond
)

// startHealing probes unreachable workers until the returned function is called.
func (g *Gateway) startHealing() (stop func()) {
	return background(func(ctx context.Context) { g.dispatcher.Heal(ctx, probeEvery) })
}

// reach tells whether w accepts connections. It asks nothing over them.
func reach(ctx context.Context, w *fleet.Worker) error {
	u, err := url.Parse(w.URL)
	if err != nil {
		return fmt.Errorf("worker %q: %w", w.ID, err)
	}
	port := u.Port()
	if port == "" {
		port = u.Scheme
	}
	dialer := net.Dialer{Timeout: probeTime}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return fmt.Errorf("worker %q: %w", w.ID, err)
	}
	return conn.Close()
}

// adapters finds the adapter of an engine by its name, and ends them all.
func adapters(c openai.Config) (find func(string) engine.Adapter, closeAll func()) {
	hosted, external := cpu.New(c), openai.New(c)
	byName := map[string]engine.Adapter{"cpu": hosted, "scripted": hosted, "openai": external}
	find = func(name string) engine.Adapter { return byName[name] }
	return find, func() { hosted.Close(); external.Close() }
}

// Addr is where clients connect, host:port.
func (g *Gateway) Addr() string { return g.addr }

// URL is the root of the API.
func (g *Gateway) URL() string { return "http://" + g.addr }

// AdminURL is the root of the admin API; empty when there is none, or when it is
// the planner's.
func (g *Gateway) AdminURL() string { return g.admin.url() }

// Load is what this gateway has in flight.
func (g *Gateway) Load() *load.Table { return g.dispatcher.Load() }

// Failed delivers the error that ended the listener, should one.
func (g *Gateway) Failed() <-chan error { return g.served }

// Close drains: not ready, no new connections, running requests end. What
// still runs when ctx ends is told and cut.
func (g *Gateway) Close(ctx context.Context) error {
	err := g.server.Drain(ctx)
	g.end()
	return err
}

// end ends what ends with the gateway.
func (g *Gateway) end() {
	for _, end := range g.after {
		end()
	}
}
