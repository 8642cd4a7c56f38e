package assemble

import (
	"context"

	"github.com/yardmaster/yardmaster/cmd/internal/hugemem"
	"github.com/yardmaster/yardmaster/core/lead"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/gpu/collect"
	"github.com/yardmaster/yardmaster/raftstore"
)

// localPrefix is the prefix state of one process. A planner that starts again
// is told everything anew by the workers.
type localPrefix struct {
	state    *prefix.State
	registry *measure.Registry
}

// newLocalPrefix keeps the index in huge pages, as bench index measures it.
func newLocalPrefix(p Process) *localPrefix {
	memory := new(hugemem.Allocator).Words
	return &localPrefix{state: prefix.NewState(prefix.Options{Memory: memory}), registry: p.Registry}
}

// Propose applies a frame. It cannot fail.
func (l *localPrefix) Propose(_ context.Context, f *prefix.Frame) (prefix.Outcome, error) {
	out := l.state.Apply(f)
	l.registry.Counter(measure.PrefixFrames, out.String()).Inc()
	return out, nil
}

// State is what the frames made.
func (l *localPrefix) State() *prefix.State { return l.state }

// run keeps the state in step with the planner's fleet until ctx ends.
func (l *localPrefix) run(ctx context.Context, p Process, store *raftstore.Store) {
	lead.RunPrefix(ctx, lead.PrefixDuties{
		State: l.state, Propose: l.Propose, View: store.View, Leading: store.Leading,
		Clock: p.Clock, Registry: p.Registry, Logger: p.Log,
	})
}

// Prefix is the planner's prefix state: [prefix.State.Table] has the index and
// which of its numbers means which worker.
func (p *Planner) Prefix() *prefix.State { return p.prefix.state }

// Events is the index of what workers said they hold.
func (p *Planner) Events() *prefix.Table { return p.prefix.state.Table() }

// newFeed is what carries the engine's KV events to the planner; nil when the
// engine publishes none.
func (w *Worker) newFeed(p Process) (*collect.Feed, error) {
	sources := w.host.sources()
	if len(sources) == 0 {
		return nil, nil
	}
	return collect.NewFeed(collect.Config{
		Worker: w.self.ID, Epoch: w.agent.Epoch,
		Open:  func(ctx context.Context) (collect.Link, error) { return w.agent.OpenFeed(ctx) },
		Scope: prefix.Scope{Base: w.self.Models[0], Compat: w.self.Compat}, Sources: sources,
		Clock: p.Clock, Registry: p.Registry, Logger: p.Log,
	})
}
