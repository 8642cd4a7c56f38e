package live

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/rollout"
)

// follower is what the goroutine that follows the cluster knows.
type follower struct {
	table    *rollout.Table // as last looked at
	began    uint64         // index of the first table that was not empty
	versions map[rollout.Digest]*version
	members  map[string]*member // ready
	failed   map[string]*failure
	applied  map[place]*bound // what the node decides by
	wanted   map[place]*bound // what it should
	retired  []*set           // replaced and still used
	busy     bool             // a job is under way
	jobs     chan job
	results  chan result
	reports  chan complaint
	orphan   *member // came when nobody followed any more
	learned  time.Time
	shown    map[string]bool // policies with gauges
	natives  map[post]native // that are bound
	staged   map[string]bool // stages of several policies that have had metrics
	gone     map[string]bool // versions that are no more and whose metrics may still be there
}

func newFollower() follower {
	return follower{
		table: &rollout.Table{}, versions: map[rollout.Digest]*version{}, members: map[string]*member{}, failed: map[string]*failure{},
		applied: map[place]*bound{}, wanted: map[place]*bound{}, shown: map[string]bool{}, staged: map[string]bool{}, gone: map[string]bool{}, natives: map[post]native{},
		jobs: make(chan job, 1), results: make(chan result, 1), reports: make(chan complaint, rollout.MaxPolicies*rollout.MaxVersions),
	}
}

// version is what is known of an uploaded version.
type version struct {
	rollout.Version
	warmed bool
	faults *faults
	// Its quarantine is to be proposed again then; zero for not at all.
	propose time.Time
	pause   time.Duration
}

// fallen reports whether the version is out of service, here or everywhere.
func (v *version) fallen() bool { return v.Quarantined > 0 || v.faults.tripped.Load() }

// failure is why something could not be prepared, and when it is tried again.
type failure struct {
	err   error
	at    time.Time
	pause time.Duration
}

// place is where something is bound.
type place struct {
	kind  rollout.Kind
	model string
}

// bound is what is bound at a place, and with what it is carried out.
type bound struct {
	resolved rollout.Resolved
	index    uint64 // for mandates: 0 where this node has gone back by itself
	// before is what was active before, kept ready to go back to.
	before rollout.Stage

	crew
}

// crew is what a binding is carried out with.
type crew struct{ active, canary, shadow []piece }

func (c *crew) stages() [3][]piece { return [3][]piece{c.active, c.canary, c.shadow} }

func (b *bound) same(o *bound) bool {
	return b.index == o.index && b.resolved.CanaryShare == o.resolved.CanaryShare && b.resolved.Active.Equal(o.resolved.Active) &&
		b.resolved.Canary.Equal(o.resolved.Canary) && b.resolved.Shadow.Equal(o.resolved.Shadow) && len(b.shadow) == len(o.shadow) &&
		slices.EqualFunc(b.active, o.active, func(p, q piece) bool { return p.member == q.member })
}

// follow keeps the node in step until ctx ends.
func (n *Node) follow(ctx context.Context) {
	for {
		changed := n.deps.Cluster.Changed()
		n.step(ctx)
		var idle chan struct{}
		if len(n.retired) > 0 {
			idle = n.retired[0].idle
		}
		timer := n.deps.Clock.NewTimer(lookEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-changed:
			if n.learned.IsZero() {
				n.learned = n.deps.Clock.Now()
			}
		case r := <-n.results:
			n.take(r)
		case <-n.alerts:
		case <-idle:
		case <-timer.C():
		}
		timer.Stop()
	}
}

// step does what there is to do.
func (n *Node) step(ctx context.Context) {
	table := n.deps.Cluster.Rollout()
	if !table.Same(n.table) {
		n.table = table
		if n.began == 0 {
			n.began = table.Index()
		}
		n.census()
	}
	n.complain()
	n.want()
	n.apply()
	n.sweep(ctx)
	n.forget()
	n.start()
	n.publish()
}

// census takes in which versions there are.
func (n *Node) census() {
	there := map[rollout.Digest]bool{}
	for _, v := range n.table.Versions() {
		there[v.Digest] = true
		known := n.versions[v.Digest]
		if known != nil && known.Index != v.Index { // deleted and uploaded again
			n.outdate(known)
			delete(n.versions, v.Digest)
			known = nil
		}
		if known == nil {
			known = &version{}
			known.faults = newFaults(n.deps.Registry, v.Ref(), n.alert)
			n.versions[v.Digest] = known
		}
		known.Version = v
	}
	for d, v := range n.versions {
		if !there[d] {
			n.outdate(v)
			delete(n.versions, d)
			n.gone[v.Ref()] = true
		}
	}
}

// outdate puts aside the members of an upload that is gone, so that another one of the
// same bytes does not get them with their faults. They close when nobody uses them.
func (n *Node) outdate(v *version) {
	for key, m := range maps.Clone(n.members) {
		if m.faults == v.faults {
			delete(n.members, key)
			n.members[outdated(&v.Version, key)] = m
		}
	}
}

// outdated is the key of a member of an upload that is gone; nothing asks for it.
func outdated(v *rollout.Version, key string) string { return fmt.Sprintf("\x00%d %s", v.Index, key) }

// forget drops the metrics of versions that are gone, once they decide nothing here any
// more, unless another has the name.
func (n *Node) forget() {
	for ref := range n.gone {
		if n.shown[ref] {
			continue
		}
		delete(n.gone, ref)
		if n.named(ref) {
			continue
		}
		for _, d := range []measure.Desc{measure.PolicyDecisions, measure.PolicyRequests, measure.PolicyFirst, measure.PolicyFaults, measure.PolicyShadow, measure.PolicyLines, measure.Admissions} {
			n.deps.Registry.Forget(d, "policy", ref)
		}
		for stage := range n.staged {
			if !strings.Contains(","+stage, ","+ref+"=") {
				continue
			}
			delete(n.staged, stage)
			for _, d := range []measure.Desc{measure.PolicyDecisions, measure.PolicyRequests, measure.PolicyFirst, measure.PolicyShadow} {
				n.deps.Registry.Forget(d, "policy", stage)
			}
		}
	}
}

// named reports whether there is a version of that name.
func (n *Node) named(ref string) bool {
	for _, v := range n.versions {
		if v.Ref() == ref {
			return true
		}
	}
	return false
}

// complain has the versions that failed here quarantined, again and again until the
// cluster has done it.
func (n *Node) complain() {
	now := n.deps.Clock.Now()
	for _, v := range n.versions {
		if v.Quarantined > 0 || !v.faults.tripped.Load() || now.Before(v.propose) {
			continue
		}
		reason := fmt.Sprintf("%d faults within %v, the last one: %s", faultsAllowed, faultWindow, v.faults.why())
		if v.propose.IsZero() {
			n.deps.Log.Error("a policy fails and is taken out of service", "policy", v.Ref(), "reason", reason, "refuses_until_changed", v.FailClosed)
		}
		v.pause = min(max(2*v.pause, firstRetry), longestRetry)
		v.propose = now.Add(v.pause)
		select {
		case n.reports <- complaint{v.Ref(), v.Digest, reason}:
		default: // the one before is still being told
		}
	}
}

// effective is the table without what has failed here.
func (n *Node) effective() *rollout.Table {
	table := n.table
	for _, v := range n.versions {
		if v.Quarantined > 0 || !v.faults.tripped.Load() {
			continue
		}
		if next, err := table.Quarantine(v.Digest, "failed here", table.Index()); err == nil {
			table = next
		}
	}
	return table
}

// want works out what the node should decide by.
func (n *Node) want() {
	table := n.effective()
	clear(n.wanted)
	for _, b := range n.table.Bindings() {
		r := table.Resolve(b.Kind, b.Model)
		w := &bound{resolved: r, index: r.Index}
		if said := n.table.Resolve(b.Kind, b.Model); !said.Active.Equal(r.Active) || !said.Canary.Equal(r.Canary) {
			w.index = 0
		}
		if len(b.Previous) > 0 {
			w.before = b.Previous[0]
		}
		n.wanted[place{b.Kind, b.Model}] = w
	}
}

// apply makes what is wanted and ready what the node decides by.
func (n *Node) apply() {
	changes, behind := false, false
	for at, w := range n.wanted {
		staff, err := n.equip(at, &w.resolved)
		if err != nil {
			behind = true
			old := n.applied[at]
			switch {
			case old == nil && w.resolved.Index <= n.began && n.closed(w.resolved.Active):
				// Bound before this node began: it lets nothing in until the guard is there.
				w.crew = crew{active: refusing(w.resolved.Active)}
				n.applied[at], changes = w, true
			case old != nil && n.spoilt(old) && !n.closed(old.resolved.Active):
				delete(n.applied, at)
				changes = true
			}
			continue
		}
		w.crew = staff
		if old := n.applied[at]; old == nil || !old.same(w) {
			n.applied[at] = w
			changes = true
		}
	}
	for at := range n.applied {
		if n.wanted[at] == nil {
			delete(n.applied, at)
			changes = true
		}
	}
	if changes || n.set.Load().index != n.table.Index() {
		n.swap(n.build())
		if changes && !n.learned.IsZero() {
			n.swapped.Observe(n.deps.Clock.Now().Sub(n.learned).Seconds())
		}
	}
	if !behind {
		n.learned = time.Time{}
	}
}

// closed reports whether a part of the stage fails closed.
func (n *Node) closed(s rollout.Stage) bool {
	return slices.ContainsFunc(s.Parts, func(p rollout.Part) bool {
		v := n.versions[p.Version]
		return v != nil && v.FailClosed
	})
}

// spoilt reports whether what a place goes on with is out of service.
func (n *Node) spoilt(b *bound) bool {
	for _, stage := range []rollout.Stage{b.resolved.Active, b.resolved.Canary} {
		for i := range stage.Parts {
			if v := n.versions[stage.Parts[i].Version]; v != nil && v.fallen() {
				return true
			}
		}
	}
	return false
}

var errPreparing = errors.New("being prepared")

// equip finds what a binding is carried out with, or says what is not ready. A shadow
// that is not ready is left out.
func (n *Node) equip(at place, r *rollout.Resolved) (c crew, err error) {
	if c.active, err = n.piecesOf(at, r.Active, false); err != nil {
		return crew{}, err
	}
	if c.canary, err = n.piecesOf(at, r.Canary, false); err != nil {
		return crew{}, err
	}
	if shadow, err := n.piecesOf(at, r.Shadow, true); err == nil {
		c.shadow = shadow
	}
	return c, nil
}

// piecesOf are the parts of a stage that decides, or of a shadow.
func (n *Node) piecesOf(at place, s rollout.Stage, shadow bool) ([]piece, error) {
	var out []piece
	for i := range s.Parts {
		p := piece{part: &s.Parts[i]}
		v := n.versions[p.part.Version]
		if p.part.Native() {
			if err := n.builtIn(at, &p, shadow); err != nil {
				return nil, err
			}
		} else if v != nil && v.fallen() && n.closed(s) {
			p = fallen(&v.Version, p.part)
		} else if p.member = n.members[keyOf(p.part, shadow)]; p.member == nil {
			return nil, n.unready(p.part, shadow)
		}
		out = append(out, p)
	}
	return out, nil
}

// unready is why a part cannot be used yet.
func (n *Node) unready(p *rollout.Part, shadow bool) error {
	why := errPreparing
	if f := n.failed[keyOf(p, shadow)]; f != nil {
		why = f.err
	}
	name := p.Policy
	if v := n.versions[p.Version]; v != nil {
		name = v.Ref()
	}
	return fmt.Errorf("%s: %w", name, why)
}

// swap makes a set the present one.
func (n *Node) swap(next *set) {
	next.users.Store(1)
	next.idle = make(chan struct{})
	for _, m := range next.members {
		m.sets++
	}
	old := n.set.Swap(next)
	old.release()
	n.retired = append(n.retired, old)
	n.deps.Registry.Gauge(measure.PolicyIndex).Set(float64(next.index))
	n.show()
}

// sweep closes what nobody uses any more.
func (n *Node) sweep(ctx context.Context) {
	n.retired = slices.DeleteFunc(n.retired, func(s *set) bool {
		select {
		case <-s.idle:
		default:
			return false
		}
		for _, m := range s.members {
			m.sets--
		}
		return true
	})
	n.dismiss()
	wanted := map[string]bool{}
	n.eachPart(func(p *rollout.Part, shadow bool) { wanted[keyOf(p, shadow)] = true })
	for key, m := range n.members {
		if m.sets > 0 || wanted[key] {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, closeTime)
		err := m.close(bounded)
		cancel()
		if err != nil {
			n.deps.Log.Warn("a policy could not be closed yet", "policy", m.ref, "error", err)
			continue
		}
		delete(n.members, key)
	}
	for _, v := range n.versions {
		wanted[warmKey(v.Digest)] = true
	}
	for key := range n.failed {
		if !wanted[key] {
			delete(n.failed, key)
		}
	}
}

// warmKey names a version's warming among what has failed.
func warmKey(d rollout.Digest) string { return "warm " + string(d[:]) }

// eachPart calls f for the uploaded parts of all that is wanted, and of what was
// active before, and says which are a shadow's.
func (n *Node) eachPart(f func(p *rollout.Part, shadow bool)) {
	for _, w := range n.wanted {
		for k, s := range [...]rollout.Stage{w.resolved.Shadow, w.resolved.Active, w.resolved.Canary, w.before} {
			for i := range s.Parts {
				if !s.Parts[i].Native() {
					f(&s.Parts[i], k == 0)
				}
			}
		}
	}
}

// start begins the next job: what is bound first, then what was uploaded.
func (n *Node) start() {
	if n.busy {
		return
	}
	now := n.deps.Clock.Now()
	var next *job
	n.eachPart(func(p *rollout.Part, shadow bool) {
		v, key := n.versions[p.Version], keyOf(p, shadow)
		if next == nil && v != nil && !v.fallen() && n.members[key] == nil && n.due(key, now) {
			next = &job{version: v.Version, part: p, shadow: shadow, faults: v.faults, warmed: v.warmed}
		}
	})
	if next == nil {
		for _, v := range n.versions {
			if !v.warmed && v.Quarantined == 0 && n.due(warmKey(v.Digest), now) {
				next = &job{version: v.Version, faults: v.faults}
				break
			}
		}
	}
	if next != nil {
		n.busy = true
		n.jobs <- *next // has room for one
	}
}

func (n *Node) due(key string, now time.Time) bool {
	f := n.failed[key]
	return f == nil || !now.Before(f.at)
}

// take takes in what came of a job.
func (n *Node) take(r result) {
	n.busy = false
	v := n.versions[r.job.version.Digest]
	if v != nil && r.warmed {
		v.warmed = true
	}
	key, longest := warmKey(r.job.version.Digest), longestRetry
	if r.job.part != nil {
		key, longest = keyOf(r.job.part, r.job.shadow), longestBoundRetry
	}
	if r.err != nil {
		f := n.failed[key]
		if f == nil {
			f = &failure{}
			n.failed[key] = f
			n.deps.Log.Warn("a policy cannot be prepared; it is tried again", "policy", r.job.version.Ref(), "error", r.err)
		}
		f.err, f.pause = r.err, min(max(2*f.pause, firstRetry), longest)
		f.at = n.deps.Clock.Now().Add(f.pause)
		return
	}
	delete(n.failed, key)
	if r.member != nil {
		if v == nil || v.faults != r.job.faults {
			key = outdated(&r.job.version, key)
		}
		n.members[key] = r.member
	}
}

// shut closes everything, after the goroutines have ended.
func (n *Node) shut(ctx context.Context) error {
	select {
	case r := <-n.results:
		n.take(r)
	default:
	}
	if n.orphan != nil {
		n.members["\x00orphan"], n.orphan = n.orphan, nil
	}
	if last := n.set.Load(); len(n.retired) == 0 || n.retired[len(n.retired)-1] != last {
		n.retired = append(n.retired, last)
		n.applied, n.wanted = map[place]*bound{}, map[place]*bound{}
		closed := &set{idle: make(chan struct{})}
		closed.users.Store(1)
		n.set.Store(closed)
		last.release()
	}
	for _, s := range n.retired {
		select {
		case <-s.idle:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	var all []error
	for key, m := range n.members {
		if err := m.close(ctx); err != nil {
			all = append(all, fmt.Errorf("%s: %w", m.ref, err))
			continue
		}
		delete(n.members, key)
	}
	return errors.Join(all...)
}
