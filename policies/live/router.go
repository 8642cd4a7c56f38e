package live

import (
	"math"
	"strconv"
	"strings"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/policies/host"
)

// router is an uploaded policy as core/route knows it. Where it has no answer it says
// why and finds nobody eligible, so that the choice's fallback decides.
type router struct {
	host   *host.Router
	faults *faults
}

// newRouter makes a router of a policy. Errors are those of [host.NewRouter].
func newRouter(p *host.Policy, f *faults) (*router, error) {
	h, err := host.NewRouter(p, nobody{})
	return &router{h, f}, err
}

// Name is the policy's name and version.
func (r *router) Name() string { return r.host.Name() }

// Needs is what the policy reads of what is filled on demand.
func (r *router) Needs() route.Needs { return r.host.Needs() }

// Score is the guest's, or nobody is eligible.
func (r *router) Score(q *route.Query, c *route.Columns, cost []float64) {
	if r.faults.out() {
		c.FellBack(outOfService)
	} else {
		fault := r.host.Try(q, c, cost)
		if fault == host.NoFault {
			return
		}
		r.faults.note(fault, q.Now)
		c.FellBack(fault.String())
	}
	nobody{}.Score(q, c, cost)
}

// nobody finds nobody eligible.
type nobody struct{}

// Name is for nobody.
func (nobody) Name() string { return "nobody" }

// Needs is nothing.
func (nobody) Needs() route.Needs { return 0 }

// Score makes all ineligible.
func (nobody) Score(_ *route.Query, _ *route.Columns, cost []float64) {
	for i := range cost {
		cost[i] = math.NaN()
	}
}

// piece is one part of a stage that is ready.
type piece struct {
	part   *rollout.Part
	member *member // nil for a native policy, and for one that is out of service
	native         // nil for an uploaded one
	ref    string  // name@version of one that is out of service and still bound
}

// native is a policy that is built in, of one of the kinds.
type native struct {
	router     route.Policy
	admission  admit.Policy
	autoscaler scale.Policy
}

func (p *piece) policy() route.Policy {
	if p.member != nil {
		return p.member.router
	}
	return p.router
}

// name is what the part is called in mandates.
func (p *piece) name() string {
	switch {
	case p.member != nil:
		return p.member.ref
	case p.ref != "":
		return p.ref
	}
	return p.part.Policy
}

// stageName lists the pieces as [route.PolicyNamed] reads them.
func stageName(pieces []piece) string {
	if len(pieces) == 1 {
		return pieces[0].name()
	}
	var s strings.Builder
	for i := range pieces {
		if i > 0 {
			s.WriteByte(',')
		}
		s.WriteString(pieces[i].name() + "=" + strconv.FormatFloat(pieces[i].part.Weight, 'g', -1, 64))
	}
	return s.String()
}

// stageDigest is the digest of a stage's one part, or the beginnings of several.
func stageDigest(pieces []piece) string {
	var all []string
	for i := range pieces {
		if d := pieces[i].part.Version; !d.IsZero() {
			if len(pieces) == 1 {
				return d.String()
			}
			all = append(all, d.Short())
		}
	}
	return strings.Join(all, "+")
}

// combined is the pieces as one policy.
func combined(pieces []piece) route.Policy {
	if len(pieces) == 1 {
		return pieces[0].policy()
	}
	var b route.Blend
	for i := range pieces {
		b.Parts = append(b.Parts, route.Weighted{Policy: pieces[i].policy(), Weight: pieces[i].part.Weight})
	}
	return b
}

// fallbackOf is the native policy that the first uploaded piece names, or nil.
func fallbackOf(pieces []piece) route.Policy {
	for i := range pieces {
		if m := pieces[i].member; m != nil && m.fallback != nil {
			return m.fallback
		}
	}
	return nil
}
