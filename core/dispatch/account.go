package dispatch

import (
	"cmp"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/route"
)

// PathRefused is the path of a placement that stands for a refusal by admission: no
// worker was chosen, and the policy is the one that refused.
const PathRefused = "refused"

// ownQuota is who refuses for a tenant's quota, among policies.
const ownQuota = "quota"

// judged completes a verdict: a policy that decides for others has named the one that
// did, and any other has decided itself.
func judged(p admit.Policy, v admit.Verdict) admit.Verdict {
	v.Policy = cmp.Or(v.Policy, p.Name())
	if v.Action != admit.Serve {
		v.Reason = cmp.Or(v.Reason, "admission")
	}
	return v
}

// refuse remembers by whom and why the request is not admitted. The outcome has it as
// its placement.
func (l *Life) refuse(reason string, by route.Mandate) {
	l.refused = &Placement{Path: PathRefused, Reason: reason, Mandate: by, Prompt: l.identity.tokens, Exact: l.identity.exact}
	l.remembered = l.d.memory.keep(Explained{
		RequestID: l.req.ID, Model: l.model.name, At: l.d.deps.Clock.Now(), Placement: *l.refused,
	}, func(e *route.Explanation) { *e = route.Explanation{} })
}

// account counts how the request ended for those who compare policies, and tenants.
func (l *Life) account(o *Outcome) {
	r := l.d.deps.Registry
	if p := l.placement; p != nil && l.d.cfg.Route.Chooser != nil {
		stage := "active"
		if p.Canary {
			stage = "canary"
		}
		r.Counter(measure.PolicyRequests, p.Policy, stage, o.Name).Inc()
		if o.TTFT > 0 {
			r.Histogram(measure.PolicyFirst, p.Policy, stage).Observe(o.TTFT.Seconds())
		}
	}
	if l.req == nil || l.req.Tenant == "" || l.model == nil {
		return
	}
	tenant, fate := l.req.Tenant, "admitted"
	if l.placement == nil && o.Err != nil && (o.Err.Kind == errs.Saturated || o.Err.Kind == errs.NoCapacity) {
		fate = "refused"
		r.Counter(measure.TenantTokens, tenant, fate).Add(float64(max(l.identity.tokens, 0)))
	}
	r.Counter(measure.TenantRequests, tenant, fate).Inc()
	if u := o.Usage; u.Known {
		r.Counter(measure.TenantTokens, tenant, "prompt").Add(float64(max(u.Prompt, 0)))
		r.Counter(measure.TenantTokens, tenant, "output").Add(float64(max(u.Output, 0)))
	}
}
