package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/rollout"
)

// Status is how far a node is. It is not to be changed.
type Status struct {
	Index    uint64 // of the bindings that the node has seen
	Versions []VersionStatus
	Bindings []BindingStatus
}

// VersionStatus is what a node knows of a version.
type VersionStatus struct {
	Policy, Release string
	Digest          rollout.Digest
	Prepared        bool   // compiled, so that binding it takes no time
	Failing         bool   // this node has taken it out of service
	Why             string // why it could not be prepared; empty otherwise
}

// BindingStatus is what a node decides by at one place.
type BindingStatus struct {
	Kind   rollout.Kind
	Model  string // empty: all models
	Wanted uint64 // log index of the binding
	// Serving is the log index of what the node decides by; 0 is what is configured,
	// or what it has gone back to.
	Serving                uint64
	Active, Canary, Shadow string // what decides and what is tried; empty for none
	Why                    string // why the node does not follow; empty where it does
	// Refuses is the part of Active that stands still and fails closed: it refuses every
	// request. Empty for none.
	Refuses string
}

// Status is how far the node is.
func (n *Node) Status() *Status { return n.status.Load() }

// publish says how far the node is.
func (n *Node) publish() {
	s := &Status{Index: n.table.Index()}
	unprepared, live, lost := 0, 0, int64(0)
	for _, v := range n.versions {
		vs := VersionStatus{Policy: v.Policy, Release: v.Release, Digest: v.Digest, Prepared: v.warmed, Failing: v.faults.tripped.Load()}
		if f := n.failed[warmKey(v.Digest)]; f != nil {
			vs.Why = f.err.Error()
		}
		if !v.warmed && v.Quarantined == 0 {
			unprepared++
		}
		s.Versions = append(s.Versions, vs)
	}
	behind := 0
	for at, w := range n.wanted {
		b := n.bindingStatus(at, w)
		if b.Why != "" {
			behind++
		}
		s.Bindings = append(s.Bindings, b)
	}
	for _, m := range n.members {
		live += m.live - int(m.policy.Lost())
		lost += m.policy.Lost()
	}
	slices.SortFunc(s.Versions, func(a, b VersionStatus) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Release, b.Release))
	})
	slices.SortFunc(s.Bindings, func(a, b BindingStatus) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Model, b.Model))
	})
	r := n.deps.Registry
	r.Gauge(measure.PolicyUnready, "versions").Set(float64(unprepared))
	r.Gauge(measure.PolicyUnready, "bindings").Set(float64(behind))
	r.Gauge(measure.PolicyInstances, "live").Set(float64(live))
	r.Gauge(measure.PolicyInstances, "lost").Set(float64(lost))
	n.status.Store(s)
	n.renew()
}

func (n *Node) bindingStatus(at place, w *bound) BindingStatus {
	b := BindingStatus{Kind: at.kind, Model: at.model, Wanted: w.resolved.Index}
	if now := n.applied[at]; now != nil {
		b.Serving = now.index
		for i, to := range []*string{&b.Active, &b.Canary, &b.Shadow} {
			if pieces := now.stages()[i]; len(pieces) > 0 {
				*to = stageName(pieces)
			}
		}
		if i := slices.IndexFunc(now.active, func(p piece) bool { return p.shut() }); i >= 0 {
			b.Refuses = now.active[i].name()
		}
	}
	if _, err := n.equip(at, &w.resolved); err != nil {
		b.Why = err.Error()
	} else if _, err := n.piecesOf(at, w.resolved.Shadow, true); err != nil {
		b.Why = "shadow " + err.Error()
	}
	return b
}

// renew tells those who wait for a status.
func (n *Node) renew() {
	next := make(chan struct{})
	if old := n.published.Swap(&next); old != nil {
		close(*old)
	}
}

// errUnsettled means that what is bound is not ready for the first time.
var errUnsettled = errors.New("policies are being prepared")

// Ready is why the node should not get traffic yet: it has just started, and what is
// bound is not known or is being prepared. A node that has once been ready goes on
// with what it has.
func (n *Node) Ready() error {
	if n.settled.Load() {
		return nil
	}
	if err := n.deps.Cluster.Ready(); err != nil {
		return fmt.Errorf("%w: %w", errUnsettled, err)
	}
	n.recovered.CompareAndSwap(0, n.deps.Clock.Now().UnixNano())
	wanted := n.deps.Cluster.Rollout().Index()
	s := n.Status() // one, or its index and its news may be of two
	news := s.news()
	switch followed := s.Index >= wanted; {
	case followed && news == "":
		n.settled.Store(true)
		return nil
	case n.deps.Clock.Now().UnixNano()-n.recovered.Load() > n.cfg.Grace.Nanoseconds():
		return nil
	case !followed:
		n.alert()
	}
	if news != "" {
		return fmt.Errorf("%w: %s", errUnsettled, news)
	}
	return errUnsettled
}

// News is what this node does not follow, and why; empty when it follows everything.
func (n *Node) News() string { return n.Status().news() }

func (s *Status) news() string {
	var out []string
	for _, b := range s.Bindings {
		if b.Why == "" {
			continue
		}
		name := string(b.Kind)
		if b.Model != "" {
			name += " of " + b.Model
		}
		out = append(out, fmt.Sprintf("%s: not at index %d, %s", name, b.Wanted, b.Why))
	}
	return strings.Join(out, "; ")
}

// Await waits until the node follows everything that is bound, and at least as of a
// log index. When ctx ends, the error says what is missing.
func (n *Node) Await(ctx context.Context, index uint64) error {
	for {
		next := *n.published.Load()
		s := n.Status()
		if s.Index >= index && s.news() == "" && n.Ready() == nil {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return fmt.Errorf("live: at index %d of %d: %s: %w", s.Index, index, s.news(), ctx.Err())
		}
	}
}
