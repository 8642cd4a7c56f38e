package assemble

import (
	"context"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/gpu/collect"
	"github.com/yardmaster/yardmaster/raftstore"
)

// storePrefix is a store's prefix state as feeds and the leader's duties use it.
type storePrefix struct {
	store  *raftstore.Store
	frames func(prefix.Outcome)
}

func newStorePrefix(p Process, store *raftstore.Store) *storePrefix {
	return &storePrefix{store, func(out prefix.Outcome) { p.Registry.Counter(measure.PrefixFrames, out.String()).Inc() }}
}

// Propose brings a frame into force, from any node.
func (s *storePrefix) Propose(ctx context.Context, f *prefix.Frame) (prefix.Outcome, error) {
	out, err := s.store.ProposeFrame(ctx, f)
	if err == nil {
		s.frames(out)
	}
	return out, err
}

// State is what the frames made, as this node knows it.
func (s *storePrefix) State() *prefix.State { return s.store.Prefix() }

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
