package assemble

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/gpu/agent"
	"github.com/yardmaster/yardmaster/gpu/collect"
)

// host is an engine in this process and all that serves it: its API, its
// metrics, its transfer endpoint.
type host interface {
	// describe fills in what the engine knows of itself: models, endpoints,
	// compatibility, capacity.
	describe(w *fleet.Worker)
	// epoch tells the engine under which incarnation the fleet knows it.
	epoch(e fleet.Epoch)
	// stats is the engine's present state. It does not block.
	stats() fleet.Stats
	// sources are the engine's KV events; none when it publishes none.
	sources() []collect.Source
	// drain refuses new requests and returns when those under way have ended.
	drain(ctx context.Context) error
	// close ends the engine; what still runs when ctx ends is aborted.
	close(ctx context.Context) error
}

// Worker is one engine in this process, and its membership in the fleet.
type Worker struct {
	host   host
	self   fleet.Worker
	log    *slog.Logger
	agent  *agent.Agent // nil without a planner
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	wanted chan struct{} // closed when the planner wants the worker to drain
	once   sync.Once
}

// StartWorker starts the engine and begins to register it. It returns when the
// engine serves; the planner may be away.
func StartWorker(ctx context.Context, p Process, c config.Worker, security config.TLS) (*Worker, error) {
	ln, err := listen(ctx, c.Listen, "worker.listen")
	if err != nil {
		return nil, err
	}
	if err := checkPlainAPI(ln.Addr(), c.PlainAPI || security.Plaintext); err != nil {
		return nil, errors.Join(fmt.Errorf("worker.listen: %w", err), ln.Close())
	}
	if c.ID == "" {
		c.ID = defaultID(c, ln.Addr())
		if _, port, _ := net.SplitHostPort(c.Listen); port == "0" { // the setting is an address
			p.Log.Info("this worker has a new name at each start; --id gives it one that lasts", "worker", c.ID)
		}
	}
	h, err := startHost(ctx, p, c, security, ln)
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	w := &Worker{host: h, log: p.Log, wanted: make(chan struct{})}
	if w.self, err = self(c); err == nil {
		h.describe(&w.self)
		err = w.join(ctx, p, c, security)
	}
	if err != nil {
		return nil, errors.Join(err, h.close(ctx))
	}
	return w, nil
}

// defaultID names a worker by what tells it from the others: several machines
// may use one port.
func defaultID(c config.Worker, listening net.Addr) string {
	host, port, _ := net.SplitHostPort(listening.String()) // a listener's address always has a port
	if c.Advertise != "" {
		host = c.Advertise
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified()) {
		return c.Role + "-" + port
	}
	return c.Role + "-" + host + "-" + port
}

func startHost(ctx context.Context, p Process, c config.Worker, security config.TLS, ln net.Listener) (host, error) {
	if c.Engine == "scripted" {
		return startScripted(ctx, p, c, ln)
	}
	return startCPU(ctx, p, c, security, ln)
}

// self is the worker as its settings describe it.
func self(c config.Worker) (fleet.Worker, error) {
	role, err := fleet.ParseRole(c.Role)
	if err != nil {
		return fleet.Worker{}, fmt.Errorf("worker.role: %w", err)
	}
	w := fleet.Worker{ID: fleet.WorkerID(c.ID), Role: role, Engine: c.Engine}
	for _, label := range c.Labels {
		key, value, _ := strings.Cut(label, "=")
		w.Labels = append(w.Labels, fleet.Label{Key: key, Value: value})
	}
	return w, nil
}

// addLabel adds a fact that the engine knows, unless the operator said it.
func addLabel(w *fleet.Worker, key, value string) {
	if !slices.ContainsFunc(w.Labels, func(l fleet.Label) bool { return l.Key == key }) {
		w.Labels = append(w.Labels, fleet.Label{Key: key, Value: value})
	}
}

// join starts the agent. Without a planner the worker serves alone, under no
// epoch.
func (w *Worker) join(ctx context.Context, p Process, c config.Worker, security config.TLS) error {
	slices.SortFunc(w.self.Labels, func(a, b fleet.Label) int { return strings.Compare(a.Key, b.Key) })
	if len(c.Planners) == 0 {
		return nil
	}
	tlsConfig, err := mutualTLS(security)
	if err != nil {
		return err
	}
	w.agent, err = agent.New(agent.Config{
		Planners: c.Planners, Worker: w.self, Stats: w.host.stats,
		OnEpoch: w.host.epoch, OnDrain: func() { w.once.Do(func() { close(w.wanted) }) },
		TLS: tlsConfig, Logger: p.Log,
	})
	if err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	feed, err := w.newFeed(p)
	if err != nil {
		return errors.Join(fmt.Errorf("worker: %w", err), w.agent.Close())
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w.cancel = cancel
	w.tasks.Go(func() {
		if err := w.agent.Run(run); err != nil {
			p.Log.Error("the worker is no longer registered", "error", err)
		}
	})
	if feed != nil {
		w.tasks.Go(func() { feed.Run(run) })
	}
	return nil
}

// Self is the worker as it is registered, but for its epoch.
func (w *Worker) Self() fleet.Worker { return w.self }

// Epoch is the worker's incarnation, 0 before it has registered.
func (w *Worker) Epoch() fleet.Epoch {
	if w.agent == nil {
		return 0
	}
	return w.agent.Epoch()
}

// DrainWanted is closed when the planner wants the worker to drain. The answer
// is Close.
func (w *Worker) DrainWanted() <-chan struct{} { return w.wanted }

// Close drains: the worker takes nothing new, finishes what it has, leaves the
// fleet and ends. What still runs when ctx ends is aborted.
func (w *Worker) Close(ctx context.Context) error {
	var drained error
	drain := func(ctx context.Context) error {
		drained = w.host.drain(ctx)
		return drained
	}
	if w.agent == nil {
		return errors.Join(drain(ctx), w.host.close(ctx))
	}
	left := w.agent.Drain(ctx, drain)
	w.cancel()
	w.tasks.Wait()
	if left != nil && drained == nil {
		// Nothing was lost: the planner will notice by the lease.
		w.log.Warn("left without telling the planner", "error", left)
	}
	return errors.Join(drained, w.agent.Close(), w.host.close(ctx))
}
