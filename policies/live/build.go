package live

import (
	"maps"
	"slices"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/route"
)

// build makes a set of what is applied.
func (n *Node) build() *set {
	s := &set{index: n.table.Index(), others: map[rollout.Kind]map[string]*bound{}}
	seen := map[*member]bool{}
	for at, b := range n.applied {
		for _, pieces := range b.stages() {
			for i := range pieces {
				if m := pieces[i].member; m != nil {
					seen[m] = true
				}
			}
		}
		if at.kind == rollout.Router {
			n.route(s, at.model, b)
			continue
		}
		if s.others[at.kind] == nil {
			s.others[at.kind] = map[string]*bound{}
		}
		s.others[at.kind][at.model] = b
	}
	s.courts = n.courts(s)
	s.members = slices.Collect(maps.Keys(seen))
	return s
}

// route adds the decider for a model.
func (n *Node) route(s *set, model string, b *bound) {
	var tried *shadow
	if len(b.shadow) > 0 {
		tried = newShadow(combined(b.shadow), stageName(b.shadow), &n.budget, n.deps.Clock, n.deps.Registry)
	}
	d := &decider{resolved: b.resolved, active: n.lane(s, b, b.active, "active", tried), canary: n.lane(s, b, b.canary, "canary", tried)}
	if model == "" {
		s.all = d
		return
	}
	if s.models == nil {
		s.models = map[string]*decider{}
	}
	s.models[model] = d
}

// configured is what the policy of the configuration is called among decisions.
const configured = "configured"

// lane is a stage's. Where nothing is active the configured policy decides: then there
// is none, unless the shadow is to see what it does.
func (n *Node) lane(s *set, b *bound, pieces []piece, stage string, tried *shadow) *lane {
	switch {
	case len(pieces) > 0:
	case tried == nil || stage != "active":
		return nil
	default:
		h := &held{s, n.deps.Registry.Counter(measure.PolicyDecisions, string(rollout.Router), configured, stage)}
		choice := func(with route.Shadow) *route.Choice {
			c := route.NewChoice(nil, with, route.Mandate{})
			c.Held = h
			return c
		}
		return &lane{choice: choice(nil), shadowed: choice(tried), shadow: tried}
	}
	mandate := route.Mandate{Policy: stageName(pieces), Digest: stageDigest(pieces), Index: b.index, Canary: stage == "canary"}
	h := &held{s, n.deps.Registry.Counter(measure.PolicyDecisions, string(rollout.Router), mandate.Policy, stage)}
	choice := func(with route.Shadow) *route.Choice {
		c := route.NewChoice(combined(pieces), with, mandate)
		c.Fallback, c.Held = fallbackOf(pieces), h
		return c
	}
	l := &lane{choice: choice(nil)}
	if tried != nil {
		l.shadowed, l.shadow = choice(tried), tried
	}
	return l
}

// show sets the gauges of what is bound.
func (n *Node) show() {
	r := n.deps.Registry
	for policy := range n.shown {
		r.Forget(measure.PolicyBound, "policy", policy)
	}
	clear(n.shown)
	for at, b := range n.applied {
		for i, stage := range [...]string{"active", "canary", "shadow"} {
			pieces := b.stages()[i]
			if len(pieces) > 1 {
				n.staged[stageName(pieces)] = true
			}
			for _, p := range pieces {
				n.shown[p.name()] = true
				r.Gauge(measure.PolicyBound, string(at.kind), at.model, stage, p.name()).Set(1)
			}
		}
	}
}

// usesState reports whether a version that there is may use the state of that name.
// It is asked by the goroutine that prepares, so that it goes by what was published.
func (n *Node) usesState(name string) bool {
	return slices.ContainsFunc(n.status.Load().Versions, func(v VersionStatus) bool { return v.Policy == name })
}
