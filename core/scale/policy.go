package scale

import (
	"math"

	"github.com/yardmaster/yardmaster/core/native"
)

// Want is what a policy wants of one pool.
type Want struct {
	Replicas uint32
	// Keep says that the policy has no opinion: the plan stays.
	Keep   bool
	Reason string // for people, short
}

// keep has no opinion.
func keep(reason string) Want { return Want{Keep: true, Reason: reason} }

// Policy says how many replicas each pool should have. A policy may remember
// earlier ticks, so that it belongs to one goroutine; a new leader begins with a
// new one.
type Policy interface {
	// Name is the policy's name in configuration and plans.
	Name() string
	// Tick writes what each pool should have, in the window's order. want has a place
	// for each.
	Tick(w *Window, want []Want)
}

// Policies are new native policies with their defaults, the default one first.
func Policies() []Policy {
	return []Policy{&Saturation{}, &Saturation{Tokens: true}, &Target{}, &SLA{}, &Backpressure{}}
}

// PolicyNamed reads a native policy: a name, with parameters behind it where others
// than their defaults are wanted, "target-utilisation(target=0.5)". It is a new one.
func PolicyNamed(text string) (Policy, error) {
	return native.Read("autoscaling", text, Policies())
}

// PolicyWith is a new native policy of that name, with parameters by name; those left
// out have their defaults.
func PolicyWith(name string, params map[string]float64) (Policy, error) {
	return native.Named("autoscaling", name, params, Policies())
}

// whole rounds up to replicas. What floating-point arithmetic adds to a whole
// number is not one more.
func whole(v float64) uint32 {
	return uint32(min(max(math.Ceil(v-1e-9), 0), MaxReplicas))
}

// serving is the replicas that carry the load, of which there must be one for the
// load to say anything of a replica; ok is false when that is not known.
func serving(s *Sample) (n float64, ok bool) {
	n, ok = usable(s.Ready)
	return n, ok && n >= 1
}

// asleep is what a pool without replicas wants: one as soon as somebody asks.
func asleep(s *Sample) (Want, bool) {
	ready, ok := usable(s.Ready)
	if !ok || ready > 0 {
		return Want{}, false
	}
	if or(s.Queued, 0) > 0 || or(s.Arrivals, 0) > 0 {
		return Want{Replicas: max(1, whole(or(s.Pending, 0))), Reason: "requests wait and nobody serves"}, true
	}
	if or(s.Pending, 0) > 0 {
		return keep("the first replica starts"), true
	}
	return keep("nobody asks"), true
}
