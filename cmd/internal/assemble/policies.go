package assemble

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/policies/live"
	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/server"
)

// governed is a fleet whose decisions follow policies that are bound while it serves.
type governed interface {
	// governor is nil where none can be bound.
	governor() *governor
}

// governor keeps a process's policies in step with what is bound.
type governor struct {
	*live.Node
	shop *workshop
	log  func(msg string, args ...any)

	mu         sync.Mutex
	configured map[string]string // what decides where nothing is bound, by kind
}

// configure notes what decides where nothing is bound, for operators to see.
func (g *governor) configure(kind rollout.Kind, policy string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.configured == nil {
		g.configured = map[string]string{}
	}
	g.configured[string(kind)] = policy
}

// unbound is what decides where nothing is bound, by kind.
func (g *governor) unbound() map[string]string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.configured)
}

// govern starts following what the cluster has bound. dataDir is the planner's; it
// may be empty.
func govern(ctx context.Context, p Process, c config.Policy, dataDir string, by judge, cluster live.Cluster) (*governor, error) {
	shop, err := openWorkshop(p, c, dataDir, by)
	if err != nil {
		return nil, err
	}
	return governIn(ctx, p, shop, cluster)
}

// governIn is govern in a workshop, which then ends with the governor.
func governIn(ctx context.Context, p Process, shop *workshop, cluster live.Cluster) (*governor, error) {
	node, err := live.Start(ctx, live.Config{Cache: shop.cache}, live.Deps{
		Cluster: cluster, Warm: shop.checks.Warm, Registry: p.Registry, Clock: p.Clock, Log: p.Log,
	})
	if err != nil {
		return nil, errors.Join(err, shop.close())
	}
	return &governor{Node: node, shop: shop, log: p.Log.Warn}, nil
}

// operator is the policies as the admin API sees them.
func (g *governor) operator(p Process, store func() *raftstore.Store) policyOperator {
	return policyOperator{store: store, checks: g.shop.checks, node: g.Node, unbound: g.unbound, clock: p.Clock, planners: g.shop.by == byPlanners}
}

// settle has a gateway's decisions follow the policies. admission is the configured one.
func (g *governor) settle(routing *route.Config, admission string, deps *dispatch.Deps) []server.Check {
	if g == nil {
		return nil
	}
	g.configure(rollout.Router, routing.Policy.Name())
	g.configure(rollout.Admission, admission)
	routing.Chooser = g.Node
	deps.Observe = g.Observe
	return []server.Check{{Name: "policies", Ready: g.Ready, News: g.News}}
}

// governTime bounds the end of policies: calls that run end within their fuel.
const governTime = 5 * time.Second

// end frees the policies, after the gateway that uses them.
func (g *governor) end() {
	if g == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), governTime)
	defer cancel()
	if err := errors.Join(g.Close(ctx), g.shop.close()); err != nil {
		g.log("the policies did not end cleanly", "error", err)
	}
}

// bound is a store as the policies follow it. view is the store whose state counts,
// and live the one that takes part in the cluster.
type bound struct{ view, live func() *raftstore.Store }

// Rollout implements live.Cluster.
func (b bound) Rollout() *rollout.Table { return b.view().State().Rollout() }

// Ready implements live.Cluster.
func (b bound) Ready() error { return b.view().Ready() }

// Changed implements live.Cluster. Where another store takes over, the node looks by
// itself within a second.
func (b bound) Changed() <-chan struct{} { return b.view().Changed() }

// Blob implements live.Cluster.
func (b bound) Blob(ctx context.Context, d rollout.Digest) ([]byte, error) {
	return b.live().Blob(ctx, d)
}

// Quarantine implements live.Cluster.
func (b bound) Quarantine(ctx context.Context, d rollout.Digest, reason string) error {
	return b.propose(ctx, planner.QuarantinePolicy{Digest: d, Reason: reason})
}

// WriteState implements live.Cluster.
func (b bound) WriteState(ctx context.Context, policy string, writes []rollout.Write) error {
	return b.propose(ctx, planner.WritePolicyState{Policy: policy, Writes: writes})
}

func (b bound) propose(ctx context.Context, cmd planner.Command) error {
	res, err := b.live().Propose(ctx, cmd)
	if err != nil {
		return err
	}
	return res.Err()
}

// Leading implements live.Cluster.
func (b bound) Leading() bool { return b.live().Leading() }
