package live

import (
	"context"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/policies/host"
)

// court is the admission that is bound for one model.
type court struct {
	bound *bound

	active, canary              measure.Counter // decisions
	agree, disagree, unshadowed measure.Counter
}

// courts are by the hash of the model's name, which is what a request says.
func (n *Node) courts(s *set) map[uint64]*court {
	out := map[uint64]*court{}
	r := n.deps.Registry
	for model, b := range s.others[rollout.Admission] {
		c := &court{bound: b}
		if len(b.active) > 0 {
			c.active = r.Counter(measure.PolicyDecisions, string(rollout.Admission), stageName(b.active), "active")
		}
		if len(b.canary) > 0 {
			c.canary = r.Counter(measure.PolicyDecisions, string(rollout.Admission), stageName(b.canary), "canary")
		}
		if len(b.shadow) > 0 {
			name := stageName(b.shadow)
			c.agree, c.disagree, c.unshadowed = r.Counter(measure.PolicyShadow, name, "agree"), r.Counter(measure.PolicyShadow, name, "disagree"), r.Counter(measure.PolicyShadow, name, "skipped")
		}
		key := uint64(0)
		if model != "" {
			key = xxhash.Sum64String(model)
		}
		out[key] = c
	}
	return out
}

// admission is whatever is bound for admission.
type admission struct {
	node       *Node
	configured admit.Policy
}

// Admission is the admission policy that is bound at the time it is asked, and
// configured while none is. Of a stage's policies, asked in order, the first that does
// not serve decides; where all serve, the first.
func (n *Node) Admission(configured admit.Policy) admit.Policy { return &admission{n, configured} }

// Name is that of what is configured: what is bound changes.
func (a *admission) Name() string { return a.configured.Name() }

// Idle implements [admit.Idler].
func (a *admission) Idle(model uint64) bool {
	s := a.node.set.Load()
	if s.courts[model] != nil || s.courts[0] != nil {
		return false
	}
	i, ok := a.configured.(admit.Idler)
	return ok && i.Idle(model)
}

// Admit is the verdict of what is bound.
func (a *admission) Admit(ask *admit.Ask) admit.Verdict {
	s := a.node.acquire()
	defer s.release()
	c := s.courts[ask.Model]
	if c == nil {
		c = s.courts[0]
	}
	if c == nil {
		return a.configured.Admit(ask)
	}
	stage, decisions := c.bound.active, c.active
	who := ask.Tenant
	if who == 0 {
		who = ask.Seed
	}
	canary := len(c.bound.canary) > 0 && c.bound.resolved.Canaried(who)
	if canary {
		stage, decisions = c.bound.canary, c.canary
	}
	if len(stage) == 0 {
		v := a.configured.Admit(ask)
		a.node.compare(c, ask, v)
		return v
	}
	decisions.Inc()
	v := a.node.judge(stage, ask, a.configured)
	if v.Policy != "" {
		v.Index, v.Canary = c.bound.index, canary
	}
	a.node.compare(c, ask, v)
	return v
}

// judge asks the pieces of a stage.
func (n *Node) judge(stage []piece, ask *admit.Ask, configured admit.Policy) (out admit.Verdict) {
	for i := range stage {
		v := stage[i].admit(ask, configured)
		if v.Action != admit.Serve {
			return v
		}
		if i == 0 {
			out = v
		}
	}
	return out
}

// admit is one piece's verdict, under its name. One that has no answer leaves it to
// what is configured, which then has said it, or refuses, as its manifest says.
func (p *piece) admit(ask *admit.Ask, configured admit.Policy) admit.Verdict {
	m := p.member
	switch {
	case m == nil && p.admission != nil:
		return p.signed(p.admission.Admit(ask))
	case m == nil:
		return configured.Admit(ask)
	}
	if !m.faults.out() {
		v, fault := m.admission.Try(ask)
		if fault == host.NoFault {
			return p.signed(v)
		}
		m.faults.note(fault, ask.Now)
	}
	if m.policy.Manifest().Fail == "closed" {
		return p.signed(host.Closed{}.Admit(ask))
	}
	return configured.Admit(ask)
}

// signed is a verdict with whose it is.
func (p *piece) signed(v admit.Verdict) admit.Verdict {
	v.Policy = p.name()
	if !p.part.Version.IsZero() {
		v.Digest = p.part.Version.String()
	}
	return v
}

// fallen stands for a part of a stage that stays bound though the part's version is out
// of service: if that fails closed it refuses everything, and what is configured is in
// its place otherwise.
func fallen(v *rollout.Version, part *rollout.Part) piece {
	p := piece{part: part, ref: v.Ref()}
	if v.FailClosed {
		p.admission = host.Closed{}
	}
	return p
}

// refusing stands for a stage that fails closed and is not ready when the node starts.
func refusing(s rollout.Stage) []piece {
	part := &s.Parts[0]
	return []piece{{part: part, native: native{admission: host.Closed{}}}}
}

// shut reports whether the piece is one of those that refuse everything.
func (p *piece) shut() bool {
	_, refuses := p.admission.(host.Closed)
	return refuses
}

// absent stands for what is configured where a shadow leaves the answer to it: that has
// decided already, and would count the request or the tick twice.
type absent struct{ asked bool }

// Name is for nobody.
func (a *absent) Name() string { return "absent" }

// Admit notes that it was asked.
func (a *absent) Admit(*admit.Ask) (v admit.Verdict) {
	a.asked = true
	return v
}

// Tick notes that it was asked.
func (a *absent) Tick(*scale.Window, []scale.Want) { a.asked = true }

// compare asks the shadow, within its time. One that has no answer is not compared.
func (n *Node) compare(c *court, ask *admit.Ask, v admit.Verdict) {
	if len(c.bound.shadow) == 0 {
		return
	}
	began := n.deps.Clock.Now()
	if !n.budget.affords(began) {
		c.unshadowed.Inc()
		return
	}
	var left absent
	other := n.judge(c.bound.shadow, ask, &left)
	now := n.deps.Clock.Now()
	n.budget.spend(now.Sub(began), now)
	switch {
	case left.asked:
		c.unshadowed.Inc()
	case other.Action == v.Action:
		c.agree.Inc()
	default:
		c.disagree.Inc()
	}
}

// Autoscaler is whatever is bound for autoscaling. Its ticks belong to one goroutine;
// the name and the mandate may be asked for by others meanwhile.
type Autoscaler struct {
	node       *Node
	configured scale.Policy
	mandate    atomic.Pointer[route.Mandate]
	other      []scale.Want // of the shadow
}

// Autoscaler is the autoscaling policy that is bound at the time it ticks, and
// configured while none is.
func (n *Node) Autoscaler(configured scale.Policy) *Autoscaler {
	a := &Autoscaler{node: n, configured: configured}
	a.mandate.Store(&route.Mandate{Policy: configured.Name()})
	return a
}

// Name is that of the policy that ticked last, or ticks now.
func (a *Autoscaler) Name() string { return a.mandate.Load().Policy }

// Mandate is under whose name that tick is.
func (a *Autoscaler) Mandate() route.Mandate { return *a.mandate.Load() }

// Tick asks what is bound. A policy that has no answer keeps every pool as it is.
func (a *Autoscaler) Tick(w *scale.Window, want []scale.Want) {
	n := a.node
	s := n.acquire()
	defer s.release()
	b := s.others[rollout.Autoscaler][""]
	if b == nil || len(b.active) == 0 {
		a.mandate.Store(&route.Mandate{Policy: a.configured.Name()})
		a.configured.Tick(w, want)
	} else {
		mandate := route.Mandate{Policy: stageName(b.active), Digest: stageDigest(b.active), Index: b.index}
		a.mandate.Store(&mandate)
		n.deps.Registry.Counter(measure.PolicyDecisions, string(rollout.Autoscaler), mandate.Policy, "active").Inc()
		b.active[0].tick(w, want, a.configured)
	}
	if b == nil || len(b.shadow) == 0 {
		return
	}
	a.other = append(a.other[:0], want...)
	var left absent
	b.shadow[0].tick(w, a.other, &left)
	result := "agree"
	for i := range want {
		if want[i].Keep != a.other[i].Keep || !want[i].Keep && want[i].Replicas != a.other[i].Replicas {
			result = "disagree"
		}
	}
	if left.asked {
		result = "skipped"
	}
	n.deps.Registry.Counter(measure.PolicyShadow, stageName(b.shadow), result).Inc()
}

// tick asks one piece. One that is out of service leaves it to what is configured.
func (p *piece) tick(w *scale.Window, want []scale.Want, configured scale.Policy) {
	m := p.member
	switch {
	case m == nil:
		p.autoscaler.Tick(w, want)
	case m.faults.out():
		configured.Tick(w, want)
	default:
		m.autoscaler.Tick(w, want)
		if fault := m.autoscaler.Last(); fault != host.NoFault {
			m.faults.note(fault, w.Now)
		}
	}
}

const (
	// mostOutcomes is how many outcomes an observer is shown at once, and outcomeTime
	// how long the first of them waits at most.
	mostOutcomes = 256
	outcomeTime  = 100 * time.Millisecond
	// queuedOutcomes bounds those that wait.
	queuedOutcomes = 16 * mostOutcomes
)

// watcher hands outcomes of requests to observers.
type watcher struct {
	queue          chan dispatch.Observation
	observed, lost measure.Counter
	told           float64 // of those lost, what observers know; of watch's goroutine
}

func newWatcher(r *measure.Registry) *watcher {
	return &watcher{
		queue:    make(chan dispatch.Observation, queuedOutcomes),
		observed: r.Counter(measure.PolicyOutcomes, "observed"), lost: r.Counter(measure.PolicyOutcomes, "lost"),
	}
}

// Observe takes what became of a request, for the observers that are bound. It never
// waits: what comes too fast is lost and counted.
func (n *Node) Observe(o dispatch.Observation) {
	if s := n.set.Load(); s.others[rollout.Observer] == nil {
		return
	}
	select {
	case n.watcher.queue <- o:
	default:
		n.watcher.lost.Inc()
	}
}

// watch shows outcomes to the observers until ctx ends.
func (n *Node) watch(ctx context.Context) {
	batch := make([]dispatch.Observation, 0, mostOutcomes)
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-n.watcher.queue:
			batch = append(batch[:0], o)
		}
		if batch = n.gather(ctx, batch); len(batch) > 0 {
			n.tell(batch)
		}
	}
}

// gather fills a batch for as long as its first outcome may wait.
func (n *Node) gather(ctx context.Context, batch []dispatch.Observation) []dispatch.Observation {
	timer := n.deps.Clock.NewTimer(outcomeTime)
	defer timer.Stop()
	for len(batch) < mostOutcomes {
		select {
		case <-ctx.Done():
			return nil
		case o := <-n.watcher.queue:
			batch = append(batch, o)
		case <-timer.C():
			return batch
		}
	}
	return batch
}

// tell shows a batch to the observers that are bound.
func (n *Node) tell(outcomes []dispatch.Observation) {
	s := n.acquire()
	defer s.release()
	b := s.others[rollout.Observer][""]
	if b == nil {
		return
	}
	lost := n.watcher.lost.Value()
	batch := host.Batch{
		Now: n.deps.Clock.Now(), Seed: rand.Uint64(), Leader: n.deps.Cluster.Leading(), //nolint:gosec // nothing secret
		Lost: uint32(min(lost-n.watcher.told, math.MaxUint32)), Outcomes: outcomes,
	}
	for i := range b.active {
		m := b.active[i].member
		if m == nil || m.faults.out() {
			continue
		}
		if fault := m.observer.Observe(&batch); fault != host.NoFault {
			m.faults.note(fault, batch.Now)
		}
	}
	n.watcher.told = lost
	n.watcher.observed.Add(float64(len(outcomes)))
}
