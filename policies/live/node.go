package live

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/policies/host"
)

// Config shapes a node. Zero fields take their defaults.
type Config struct {
	// Instances is how many of a router are made; default 2.
	Instances int
	// ShadowShare is the share of time that shadows may take; default 0.05.
	ShadowShare float64
	// Grace is how long a node that has just come to know what is bound is not ready
	// while that is prepared; default 10 s. After that it serves by what is configured.
	Grace time.Duration
	// Cache is the directory for compiled code, see [host.Options].
	Cache string
}

// Validate reports every fault at once.
func (c Config) Validate() error {
	var faults []error
	if c.Instances < 0 || c.Instances > mostInstances {
		faults = append(faults, fmt.Errorf("instances of a policy are not in [0, %d]", mostInstances))
	}
	if !(c.ShadowShare >= 0 && c.ShadowShare <= 1) {
		faults = append(faults, errors.New("the shadows' share of time is not in [0, 1]"))
	}
	if c.Grace < 0 {
		faults = append(faults, errors.New("the grace at the start is negative"))
	}
	return errors.Join(faults...)
}

func (c Config) withDefaults() Config {
	if c.Instances == 0 {
		c.Instances = 2
	}
	if c.ShadowShare == 0 {
		c.ShadowShare = .05
	}
	if c.Grace == 0 {
		c.Grace = 10 * time.Second
	}
	return c
}

// Deps are what a node needs of its surroundings.
type Deps struct {
	Cluster Cluster
	// Warm compiles a module into the cache where it can do no harm, or says why it
	// cannot be; nil trusts all modules.
	Warm     func(ctx context.Context, wasm []byte) error
	Registry *measure.Registry
	Clock    clock.Clock
	Log      *slog.Logger
}

const (
	mostInstances = 16
	// prepareTime bounds fetching, compiling and loading a version.
	prepareTime = 30 * time.Second
	// lookEvery is how often the table is looked at though nothing was said, and what
	// failed is tried again.
	lookEvery = time.Second
	// Pauses before what could not be prepared is tried again; what is bound is waited
	// for.
	firstRetry, longestRetry, longestBoundRetry = time.Second, time.Minute, 5 * time.Second
	// closeTime bounds closing a policy that nobody uses any more.
	closeTime = 5 * time.Second
)

// Node is one node's policies. Its methods are safe for concurrent use.
type Node struct {
	cfg      Config
	deps     Deps
	host     *host.Host
	set      atomic.Pointer[set]
	budget   budget
	locals   locals
	writer   *writer
	watcher  *watcher
	prepared measure.Histogram
	swapped  measure.Histogram

	familiesMu sync.Mutex
	families   map[string]bool // histograms that policies have declared

	status    atomic.Pointer[Status]
	published atomic.Pointer[chan struct{}] // closed at the next status
	recovered atomic.Int64                  // when the table was first known to be whole, unix nanoseconds; 0 before
	settled   atomic.Bool                   // everything bound has been ready once
	alerts    chan struct{}
	end       context.CancelFunc
	tasks     sync.WaitGroup

	follower // what belongs to the goroutine that follows
}

// Start starts following the cluster. Until something is bound and ready the node
// chooses nothing. The caller closes it after whoever uses it has ended.
func Start(ctx context.Context, c Config, deps Deps) (*Node, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("live: %w", err)
	}
	c = c.withDefaults()
	n := &Node{
		cfg: c, deps: deps, budget: budget{share: c.ShadowShare}, locals: locals{by: map[string]*local{}},
		writer: newWriter(deps.Cluster, deps.Registry), prepared: deps.Registry.Histogram(measure.PolicyPrepare), swapped: deps.Registry.Histogram(measure.PolicySwap),
		families: map[string]bool{}, alerts: make(chan struct{}, 1),
		follower: newFollower(),
	}
	n.watcher = newWatcher(deps.Registry)
	var err error
	if n.host, err = host.New(ctx, &services{node: n, log: deps.Log, local: newLocal()}, host.Options{Cache: c.Cache}); err != nil {
		return nil, err
	}
	first := &set{idle: make(chan struct{})}
	first.users.Store(1)
	n.set.Store(first)
	n.status.Store(&Status{})
	n.renew()
	ctx, n.end = context.WithCancel(context.WithoutCancel(ctx))
	n.tasks.Go(func() { n.follow(ctx) })
	n.tasks.Go(func() { n.work(ctx) })
	n.tasks.Go(func() { n.report(ctx) })
	n.tasks.Go(func() { n.writer.run(ctx, n) })
	n.tasks.Go(func() { n.watch(ctx) })
	return n, nil
}

// Close ends the node and frees its policies. Decisions that are being made end
// first; when ctx ends before they do, what they use is left as it is.
func (n *Node) Close(ctx context.Context) error {
	n.end()
	n.tasks.Wait()
	if err := n.shut(ctx); err != nil {
		return err
	}
	return n.host.Close(ctx)
}

// pause waits, and reports whether ctx has not ended.
func (n *Node) pause(ctx context.Context, d time.Duration) bool {
	timer := n.deps.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}

// alert wakes the goroutine that follows.
func (n *Node) alert() {
	select {
	case n.alerts <- struct{}{}:
	default:
	}
}

// work prepares versions, one at a time: compiling takes a core.
func (n *Node) work(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case j := <-n.jobs:
			r := n.prepare(ctx, j)
			select {
			case n.results <- r: // never full: there is one job at a time
			case <-ctx.Done():
				if r.member != nil {
					n.orphan = r.member // the follower has ended
				}
				return
			}
		}
	}
}

// report proposes to quarantine what has failed here, until the cluster has.
func (n *Node) report(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case v := <-n.reports:
			bounded, cancel := context.WithTimeout(ctx, writeTime)
			err := n.deps.Cluster.Quarantine(bounded, v.digest, v.reason)
			cancel()
			if err != nil {
				n.deps.Log.Warn("a policy that fails could not be quarantined for all nodes; it is tried again", "policy", v.ref, "error", err)
			}
		}
	}
}

// complaint is a version to be quarantined.
type complaint struct {
	ref    string
	digest rollout.Digest
	reason string
}
