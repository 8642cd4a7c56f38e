package dispatch

import (
	"maps"
	"slices"
	"sync/atomic"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/cost"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/prompt"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/unit"
)

// maxModels bounds the models remembered. Workers name them, so only a broken
// operator reaches it.
const maxModels = 4096

// unknownModel is the metrics label of every model nobody serves: clients may
// not make series.
const unknownModel = "unknown"

// model is what a dispatcher keeps about a model that some worker serves or has
// served.
type model struct {
	name    string
	ratio   cost.Ratio
	outputs outputs
	turn    uint64       // decisions so far; guarded by Dispatcher.deciding
	context atomic.Int64 // longest prompt plus output of any worker; 0 is unknown
	// target is for whom identities are made; of the view last learned.
	target atomic.Pointer[prompt.Target]

	ttft              [2]measure.Histogram // by route.Path
	itl, tpot, queued measure.Histogram
	prompt, cached    measure.Counter
	output, failovers measure.Counter
	migrations        measure.Counter
	arrivals          measure.Counter
	requests          *measure.Counters // by route and outcome
	paths             *measure.Counters // by path and reason
	line              *admit.Line
}

func (d *Dispatcher) newModel(name string) *model {
	r := d.deps.Registry
	waiting := r.Gauge(measure.Waiting, name)
	return &model{
		line:       d.lobby.NewLine(func(n int) { waiting.Set(float64(n)) }),
		migrations: r.Counter(measure.Migrations, name),
		arrivals:   r.Counter(measure.Arrivals, name),
		name:       name,
		ttft: [2]measure.Histogram{
			r.Histogram(measure.TTFT, name, route.Aggregated.String()),
			r.Histogram(measure.TTFT, name, route.Disaggregated.String()),
		},
		itl:       r.Histogram(measure.ITL, name),
		tpot:      r.Histogram(measure.TPOT, name),
		queued:    r.Histogram(measure.QueueWait, name),
		prompt:    r.Counter(measure.PromptTokens, name),
		cached:    r.Counter(measure.CachedTokens, name),
		output:    r.Counter(measure.OutputTokens, name),
		failovers: r.Counter(measure.Failovers, name),
		requests:  r.Counters(measure.Requests, name),
		paths:     r.Counters(measure.Paths, name),
	}
}

// known is a set of models, valid for one view. It is immutable.
type known struct {
	view   *fleet.View
	models map[string]*model
}

// model finds the model by name, nil when no worker serves or served it. A new
// view's models are taken in first, so that a model whose workers are all gone
// is still told from one that never was.
func (d *Dispatcher) model(view *fleet.View, name string) *model {
	k := d.known.Load()
	if k == nil || k.view != view {
		k = d.learn(view)
	}
	return k.models[name]
}

func (d *Dispatcher) learn(view *fleet.View) *known {
	d.learning.Lock()
	defer d.learning.Unlock()
	old := d.known.Load()
	next := &known{view: view, models: map[string]*model{}}
	if old != nil {
		if old.view == view {
			return old
		}
		next.models = old.models
	}
	copied := false
	names := view.Models()
	if old == nil {
		names = slices.Concat(d.cfg.Models, names)
	}
	for _, name := range names {
		if m := next.models[name]; m != nil {
			m.see(view)
			continue
		}
		if len(next.models) >= maxModels {
			continue
		}
		if !copied { // readers hold the old map
			next.models = maps.Clone(next.models)
			copied = true
		}
		m := d.newModel(name)
		m.see(view)
		next.models[name] = m
	}
	d.known.Store(next)
	return next
}

// see takes in what a view says of the model's workers. Without any, their context is
// what it was.
func (m *model) see(view *fleet.View) {
	m.target.Store(targetOf(view, m.name))
	var longest unit.Tokens
	for _, i := range view.Serving(m.name) {
		longest = max(longest, view.Workers[i].Capacity.MaxContext)
	}
	if longest > 0 {
		m.context.Store(int64(longest))
	}
}

// targetOf is for whom the identities of a model's requests are made: the hash
// domain and block size of most of its workers. Workers that differ have hits
// only where they are guessed. It is nil for a model that nobody serves.
func targetOf(view *fleet.View, name string) *prompt.Target {
	votes := map[prompt.Target]int{}
	var best *prompt.Target
	for _, i := range view.Serving(name) {
		w := &view.Workers[i]
		t := prompt.Target{
			Scope:       prefix.Scope{Base: w.Models[0], Compat: w.Compat},
			BlockTokens: w.Capacity.BlockTokens,
		}
		if name != w.Models[0] {
			t.Scope.Adapter = name
		}
		if votes[t]++; best == nil || votes[t] > votes[*best] {
			best = &t
		}
	}
	return best
}
