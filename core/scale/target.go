package scale

import (
	"fmt"

	"github.com/yardmaster/yardmaster/core/native"
)

// Target keeps a pool's utilisation at a target: of n replicas at utilisation u,
//
//	ceil(n·u / Target)
//
// unless u is within Tolerance of the target. A pool is used as much as the scarcer
// of its memory and its compute: u is the greater of its KV usage and, where rates
// are measured, uncached prompt tokens over the prefill rate and output tokens over
// the decode rate; requests that wait make it 1 at least. Source: the horizontal pod
// autoscaler's formula, on signals that saturate later than a GPU's utilisation.
type Target struct {
	Target    float64 // 0 means 0.7
	Tolerance float64 // 0 means 0.1
}

// Name is "target-utilisation".
func (*Target) Name() string { return "target-utilisation" }

// Tune makes one with other parameters.
func (*Target) Tune(s *native.Params) Policy {
	var t Target
	s.Number(&t.Target, native.Param{Name: "target", Default: .7, Least: .001, Most: 1, Help: "utilisation that is wanted"})
	s.Number(&t.Tolerance, native.Param{Name: "tolerance", Default: .1, Least: .001, Most: 1, Help: "how far from it nothing changes, as a share of it"})
	return &t
}

// Tick is the formula of the type.
func (t *Target) Tick(w *Window, want []Want) {
	target, tolerance := or0(t.Target, .7), or0(t.Tolerance, .1)
	for i := range w.Pools {
		want[i] = t.pool(w.Pools[i].Now(), target, tolerance)
	}
}

func (t *Target) pool(s *Sample, target, tolerance float64) Want {
	if sleeping, ok := asleep(s); ok {
		return sleeping
	}
	n, ok := serving(s)
	u, known := utilisation(s, n)
	if !ok || !known {
		return keep("utilisation unknown")
	}
	reason := fmt.Sprintf("utilisation %.2f, target %.2f", u, target)
	if u > target*(1-tolerance) && u < target*(1+tolerance) {
		return keep(reason)
	}
	return Want{Replicas: whole(n * u / target), Reason: reason}
}

// utilisation is that of [Target] for n replicas, and whether anything of it is
// known.
func utilisation(s *Sample, n float64) (u float64, known bool) {
	use := func(load, capacity float64) {
		a, okA := usable(load)
		b, okB := usable(capacity)
		if okA && okB && b > 0 {
			u, known = max(u, a/b), true
		}
	}
	use(s.KVUsage, 1)
	use(s.PromptTokens*(1-min(or(s.HitRatio, 0), 1)), s.PrefillRate*n)
	use(s.OutputTokens, s.DecodeRate*n)
	if or(s.Waiting, 0)+or(s.Queued, 0) > n {
		u, known = max(u, 1), true
	}
	return u, known
}

// or0 is v, or the default where v is 0.
func or0(v, standard float64) float64 {
	if v == 0 {
		return standard
	}
	return v
}
