package live

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/rollout"
)

const (
	// writeEvery is how long writes are gathered before they are proposed.
	writeEvery = 100 * time.Millisecond
	// writeTime bounds one proposal.
	writeTime = 2 * time.Second
)

// writer gathers what policies write to the cluster's state, and proposes it. A batch
// that fails is lost and counted: whether it was carried out may not be known, and an
// addition must not be done twice.
type writer struct {
	cluster  Cluster
	registry *measure.Registry

	mu      sync.Mutex
	waiting map[string][]rollout.Write // by state
	flying  map[string][]rollout.Write // proposed and not known to be carried out
	wake    chan struct{}
	pending atomic.Int64 // states with writes, so that reading need not lock
}

func newWriter(c Cluster, r *measure.Registry) *writer {
	return &writer{cluster: c, registry: r, waiting: map[string][]rollout.Write{}, flying: map[string][]rollout.Write{}, wake: make(chan struct{}, 1)}
}

// get is the value under a key as it will be.
func (w *writer) get(name string, key []byte) ([]byte, bool) {
	if w.pending.Load() == 0 {
		return w.cluster.Rollout().State(name).Get(text(key))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.value(name, text(key))
}

func (w *writer) value(name, key string) ([]byte, bool) {
	value, ok := w.cluster.Rollout().State(name).Get(key)
	for _, writes := range [][]rollout.Write{w.flying[name], w.waiting[name]} {
		for i := range writes {
			if writes[i].Key != key {
				continue
			}
			if writes[i].Op == rollout.WriteAdd {
				value = rollout.NumberValue(rollout.Number(value) + writes[i].Delta)
			} else {
				value = writes[i].Value
			}
			ok = true
		}
	}
	return value, ok
}

// set writes, and reports whether there was room.
func (w *writer) set(name string, key, value []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	writes := slices.DeleteFunc(w.waiting[name], func(o rollout.Write) bool { return o.Key == text(key) })
	w.waiting[name] = writes
	return w.append(name, rollout.Write{Op: rollout.WriteSet, Key: string(key), Value: slices.Clone(value)})
}

// add adds, and returns the sum.
func (w *writer) add(name string, key []byte, delta int64) (sum int64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, _ := w.value(name, text(key))
	sum = rollout.Number(before) + delta
	writes := w.waiting[name]
	for i := range writes {
		switch o := &writes[i]; {
		case o.Key != text(key):
			continue
		case o.Op == rollout.WriteAdd:
			o.Delta += delta
		default:
			o.Value = rollout.NumberValue(sum)
		}
		return sum, true
	}
	return sum, w.append(name, rollout.Write{Op: rollout.WriteAdd, Key: string(key), Delta: delta})
}

func (w *writer) append(name string, o rollout.Write) bool {
	if len(w.waiting[name]) >= rollout.MaxWrites || len(w.waiting) > mostLocals {
		w.registry.Counter(measure.PolicyWrites, name, "refused").Inc()
		return false
	}
	w.waiting[name] = append(w.waiting[name], o)
	w.count()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return true
}

func (w *writer) count() { w.pending.Store(int64(len(w.waiting) + len(w.flying))) }

// run proposes until ctx ends.
func (w *writer) run(ctx context.Context, n *Node) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		if !n.pause(ctx, writeEvery) {
			return
		}
		w.flush(ctx, n)
	}
}

// flush proposes what waits, a batch for each state.
func (w *writer) flush(ctx context.Context, n *Node) {
	w.mu.Lock()
	w.waiting, w.flying = w.flying, w.waiting
	clear(w.waiting)
	names := make([]string, 0, len(w.flying))
	for name := range w.flying {
		names = append(names, name)
	}
	w.mu.Unlock()
	slices.Sort(names)
	for _, name := range names {
		w.mu.Lock()
		writes := w.flying[name]
		w.mu.Unlock()
		fate := "committed"
		if len(writes) > 0 {
			bounded, cancel := context.WithTimeout(ctx, writeTime)
			if err := w.cluster.WriteState(bounded, name, writes); err != nil {
				fate = "lost"
				n.deps.Log.Warn("writes of a policy to the cluster's state are lost", "policy", name, "writes", len(writes), "error", err)
			}
			cancel()
			w.registry.Counter(measure.PolicyWrites, name, fate).Add(float64(len(writes)))
		}
		w.mu.Lock()
		delete(w.flying, name)
		w.count()
		w.mu.Unlock()
	}
}
