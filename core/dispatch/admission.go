package dispatch

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/cost"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/mix"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/unit"
)

// standing is how a request stands with admission.
type standing struct {
	visit    *admit.Visit // its tenant's; nil where nobody asks
	quota    admit.Reservation
	priority uint8
	queues   bool // it goes behind those that wait
}

// admit asks the tenant's quota and the admission policy whether the request may
// begin, and how urgent it is. Where there is neither a policy nor a quota it costs
// nothing.
func (l *Life) admit(ctx context.Context) error {
	policy := l.d.deps.Admission
	model := xxhash.Sum64String(l.model.name)
	if idle(policy, model) {
		l.standing.priority = admit.Open{}.Admit(&admit.Ask{Class: l.req.Class}).Priority
		policy = nil
	}
	if policy == nil {
		return l.charge(ctx)
	}
	l.identify(ctx)
	l.standing.visit = l.d.tenants.Visit(l.tenant())
	ask := l.ask(model, l.expects())
	v := judged(policy, policy.Admit(&ask))
	l.count(v)
	switch v.Action {
	case admit.Reject:
		l.refuse(v.Reason, route.Mandate{Policy: v.Policy, Digest: v.Digest, Index: v.Index, Canary: v.Canary})
		return rejected(v)
	case admit.Degrade:
		if !l.req.Whole { // else there is no output, and engines may not know the field
			l.req.Shorten(l.d.cfg.Degraded)
		}
	case admit.Queue:
		l.standing.queues = true
	case admit.Serve:
	}
	l.standing.priority = v.Priority
	return l.charge(ctx)
}

// lineUp gives a request that is to wait the visit that its place in the line depends
// on, where admission asked for none.
func (l *Life) lineUp() {
	if l.standing.visit == nil && l.req.Tenant != "" {
		l.standing.visit = l.d.tenants.Visit(l.tenant())
	}
}

// idle reports whether a policy has nothing to say of a model.
func idle(p admit.Policy, model uint64) bool {
	if p == nil {
		return true
	}
	i, ok := p.(admit.Idler)
	return ok && i.Idle(model)
}

// charge reserves the prompt and the output of the tenant's quota, if it has one.
func (l *Life) charge(ctx context.Context) error {
	q := l.d.deps.Quota
	if q == nil || l.req.Tenant == "" {
		return nil
	}
	limit, limited := q.Limit(l.req.Tenant)
	if !limited {
		return nil
	}
	l.identify(ctx)
	tokens := l.reserves(limit)
	r, retry, ok := q.Reserve(ctx, l.req.Tenant, tokens)
	if !ok {
		return l.overQuota(tokens, limit, retry)
	}
	if r.Credit != "" {
		l.d.deps.Registry.Counter(measure.Admissions, "credit", r.Credit, ownQuota).Inc()
	}
	l.standing.quota = r
	return nil
}

// reserves is what the request may use at most, as far as that is known: of many that
// begin at once nobody knows yet what they will have used. Of one that names no limit it
// is what is expected, which by itself is no reason to call a quota too small.
func (l *Life) reserves(limit unit.Tokens) unit.Tokens {
	prompt := l.identity.tokens
	if l.req.Whole || l.req.MaxTokens <= 0 {
		return max(prompt, min(prompt+l.expects(), limit))
	}
	most := unit.Tokens(unseenOutput)
	if context := unit.Tokens(l.model.context.Load()); context > 0 {
		most = max(context-prompt, 0)
	}
	return prompt + min(l.req.MaxTokens, most)
}

// overQuota refuses a request that a quota has no tokens for: until the next window, or
// for ever where retry is 0.
func (l *Life) overQuota(tokens, limit unit.Tokens, retry time.Duration) error {
	e := &errs.Error{
		Kind: errs.Saturated, Client: "the tenant's quota of tokens is used up for now", Code: "tenant_quota", RetryAfter: retry, NoRetry: retry > time.Minute,
		Cause: fmt.Errorf("quota: %d tokens were asked for", tokens),
	}
	if retry == 0 {
		// Coming back is of use only when the quota has been set anew.
		e.Code, e.NoRetry, e.RetryAfter = "tenant_quota_too_small", true, time.Minute
		e.Client = fmt.Sprintf("the request may use %d tokens, its prompt and max_tokens together, and the tenant's quota is %d a minute: it would never be let in", tokens, limit)
	}
	l.d.deps.Registry.Counter(measure.Admissions, "reject", e.Code, ownQuota).Inc()
	l.refuse(e.Code, route.Mandate{Policy: ownQuota})
	return e
}

// rejected is a refusal as the client reads it.
func rejected(v admit.Verdict) error {
	e := &errs.Error{Kind: errs.Saturated, Client: "the request was not admitted; try again later", Code: v.Reason, RetryAfter: v.RetryAfter, Cause: fmt.Errorf("admission by %s: %s", v.Policy, v.Reason)}
	if v.Unavailable {
		e.Kind, e.Client = errs.NoCapacity, "there is no capacity for the request now"
	}
	return e
}

// count counts a verdict that is more than to serve.
func (l *Life) count(v admit.Verdict) {
	if v.Action != admit.Serve {
		l.d.deps.Registry.Counter(measure.Admissions, [...]string{"serve", "queue", "reject", "degrade"}[v.Action], v.Reason, v.Policy).Inc()
	}
}

// depart gives back what admission holds of the request, and counts what it got.
func (l *Life) depart(o *Outcome) {
	s := &l.standing
	u := l.watch.Usage
	if s.visit != nil {
		if u.Known {
			s.visit.Serve(u.Prompt, u.Cached, u.Output)
		}
		s.visit.End()
	}
	switch {
	case u.Known:
		s.quota.Settle(u.Prompt + u.Output)
	case l.watch.Tokens > 0:
		s.quota.Settle(l.identity.tokens + unit.Tokens(l.watch.Tokens))
	case l.placement == nil:
		s.quota.Settle(0) // it was never sent
	case o.Err != nil && o.Err.Kind == errs.Canceled:
		// An engine may have computed all of it: leaving early costs what was expected,
		// or it would be free.
		s.quota.Settle(l.identity.tokens + l.expects())
	case o.Err != nil || l.status >= 400:
		s.quota.Settle(0) // nobody accepted it, an engine refused it, or the answer was lost
	default:
		s.quota.Settle(l.identity.tokens + l.expects()) // nobody said what it used
	}
	l.standing = standing{}
}

// ask is what the policy is told.
func (l *Life) ask(model uint64, output unit.Tokens) admit.Ask {
	now := l.d.deps.Clock.Now()
	own := l.standing.visit.Standing()
	a := admit.Ask{
		Now: now, Seed: mix.Bits(xxhash.Sum64String(l.req.ID)), Model: model, Tenant: l.tenant(),
		Prompt: l.identity.tokens, Output: output, Class: l.req.Class,
		Queued: l.model.line.Len(), TenantQueued: own.Waiting, TenantRunning: own.Running - 1, // itself
		TenantTokens: math.NaN(), TenantService: own.Service, LeastService: own.Least,
		WantedFirst: wanted(l.req.Wishes.First), WantedBetween: wanted(l.req.Wishes.Between),
		Deadline: wanted(l.d.cfg.Deadlines.Total), Waited: millis(elapsed(l.accepted, now)),
	}
	if output == 0 && !l.req.Whole {
		a.Output = -1
	}
	if q := l.d.deps.Quota; q != nil && l.req.Tenant != "" {
		if left, limited := q.Left(l.req.Tenant); limited {
			a.TenantTokens = float64(left)
		}
	}
	l.survey(&a)
	return a
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// wanted is a time in milliseconds, NaN where there is none.
func wanted(d time.Duration) float64 {
	if d <= 0 {
		return math.NaN()
	}
	return millis(d)
}

// survey adds what is known of the model's workers: how many, what waits there, how
// full their caches are, and what the best of them would take.
func (l *Life) survey(a *admit.Ask) {
	lined := l.d.table.Columns(l.d.deps.View())
	var samples *fleet.Samples
	if l.d.deps.Samples != nil {
		samples = l.d.deps.Samples()
	}
	a.KVUsage, a.First, a.Between = math.NaN(), math.NaN(), math.NaN()
	var usage, known, waiting float64
	for _, i := range lined.View.Serving(l.model.name) {
		w, slot := &lined.View.Workers[i], lined.Slots[i]
		if !serves(w) || slot.OutOfService(a.Now) {
			continue
		}
		a.Workers++
		s, ok := samples.Find(w.ID, w.Epoch)
		if !ok {
			continue
		}
		if v, ok := s.Stats.Waiting.Usable(); ok {
			waiting += v
		}
		if free, ok := s.Stats.KVBlocksFree.Usable(); ok && w.Capacity.KVBlocks > 0 {
			usage, known = usage+1-min(free/float64(w.Capacity.KVBlocks), 1), known+1
		}
		if step, ok := s.Stats.DecodeStepSeconds.Usable(); ok && !(a.Between <= step*1000) {
			a.Between = step * 1000
		}
		rate, _ := s.Stats.PrefillTokensPerSecond.Usable()
		if d, ok := cost.PrefillTime(slot.QueuedPrompt(), a.Prompt, 0, rate); ok && !(a.First <= millis(d)) {
			a.First = millis(d)
		}
	}
	if known > 0 {
		a.KVUsage = usage / known
	}
	a.Waiting = int(waiting)
}
