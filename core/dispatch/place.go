package dispatch

import (
	"context"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/route"
)

// placed is a decision with its reservations taken.
type placed struct {
	route.Decision
	transfer       uint64
	serve, prefill *load.Reservation // prefill is nil when aggregated
}

func (p *placed) slot() *load.Slot { return p.Slots[p.Serve] }

// place decides and reserves in one step.
func (l *Life) place(ctx context.Context) (*placed, error) {
	d := l.d
	view := d.deps.View()
	d.model(view, l.model.name) // its first worker may have come since
	l.identify(ctx)
	lined := d.table.Columns(view)
	d.tracker.Follow(view)
	caches := route.Caches{Events: d.events(), Guess: d.tracker.Table()}
	var samples *fleet.Samples
	if d.deps.Samples != nil {
		samples = d.deps.Samples()
	}
	now := d.deps.Clock.Now()
	q := route.Query{
		Model: l.req.Model, Prompt: l.identity.tokens, Chain: l.identity.blocks(), BlockTokens: l.identity.blockTokens,
		Now: now, Tried: l.avoided(),
	}
	if d.cfg.Route.Chooser != nil {
		l.describe(&q, now)
	}
	p := &placed{}

	d.deciding.Lock()
	defer d.deciding.Unlock()
	q.Turn = l.model.turn
	l.model.turn++
	var err error
	if p.Decision, err = d.router.Decide(&q, lined, samples, caches); err != nil {
		return nil, err
	}
	if err = l.constrain(&p.Decision, now); err != nil {
		return nil, err
	}
	if l.together != "" && p.Path == route.Disaggregated {
		p.Path, p.Prefill, p.NextPrefill, p.Reason = route.Aggregated, route.None, route.None, l.together
	}
	d.decision.Observe(d.deps.Clock.Now().Sub(now).Seconds())
	if d.deps.Observe != nil {
		l.basis.cost, l.basis.requests = d.router.Basis()
		l.basis.queued = elapsed(l.accepted, now)
	}
	l.reserve(p, &q)
	l.explain(p, q.Seed)
	l.placements++
	return p, nil
}

// reserve counts the work where the decision puts it, and remembers what the
// workers come to hold. The caller holds Dispatcher.deciding.
func (l *Life) reserve(p *placed, q *route.Query) {
	d := l.d
	uncached := max(q.Prompt-p.ServeHit, 0)
	if p.Path == route.Disaggregated {
		p.transfer = d.rng.Uint64() | 1 // never zero
		left := max(q.Prompt-p.PrefillHit, 0)
		p.prefill = p.Slots[p.Prefill].Reserve(load.Prefill, load.Work{Prompt: left, Context: left})
		p.serve = p.slot().Reserve(load.Decode, load.Work{Context: uncached})
		l.dispatched(p.Prefiller())
	} else {
		p.serve = p.slot().Reserve(load.Prefill, load.Work{Prompt: uncached, Context: uncached})
	}
	ticket := l.dispatched(p.Server())
	if p.Path == route.Aggregated {
		// What a decode worker calls cached may be what was moved to it.
		l.identity.ticket = ticket
	}
	l.identity.presence.Leave() // of an earlier attempt
	l.identity.presence = d.router.Commit(q, &p.Decision)
}

func (l *Life) explain(p *placed, seed uint64) {
	id := func(i int) fleet.WorkerID {
		if i == route.None {
			return ""
		}
		return p.View.Workers[i].ID
	}
	l.path = p.Path
	fault := ""
	if l.placement != nil {
		fault = l.placement.PrefillFault
	}
	l.placement = &Placement{
		Migrations: l.trail.went, PrefillFault: fault,
		Path: p.Path.String(), Reason: p.Reason, Mandate: p.Mandate, Fallback: p.Fallback,
		Serve: id(p.Serve), Prefill: id(p.Prefill), NextServe: id(p.NextServe), NextPrefill: id(p.NextPrefill),
		Prompt: l.identity.tokens, Exact: l.identity.exact, Hit: p.ServeHit,
		Failovers: len(l.tried),
	}
	if p.Reason == route.ReasonShortPrompt || p.Reason == route.ReasonCached {
		l.placement.MinPrompt = l.d.router.MinPrompt()
	}
	if len(l.tried) > 0 {
		l.model.failovers.Inc()
	}
	l.remembered = l.d.memory.keep(Explained{
		RequestID: l.req.ID, Model: l.model.name, At: l.d.deps.Clock.Now(), Seed: seed, Placement: *l.placement,
	}, func(e *route.Explanation) { l.d.router.Explain(&p.Decision, e) })
	l.model.paths.Of(p.Path.String(), p.Reason).Inc()
}

func (l *Life) call(p *placed) *engine.Call {
	c := &engine.Call{
		RequestID: l.req.ID, Path: l.req.Path, Body: l.body(), Stream: l.req.Stream, Trace: l.req.Trace,
		TokenIDs: l.asksIDs(),
	}
	if p.Path == route.Disaggregated {
		c.Leg, c.TransferID, c.Peer = engine.Decode, p.transfer, p.Prefiller()
	}
	return c
}

// Reasons for computing all on one worker that are not the router's.
const (
	reasonNoGeneration  = "no_generation"
	reasonManyPrompts   = "many_prompts"
	reasonPrefillFailed = "prefill_failed"
	reasonLegRefused    = "leg_refused"
)

// together says why a request cannot be computed in two legs, whose transfer is
// of one prompt; empty when it can.
func together(r *Request) string {
	switch {
	case r.Whole:
		return reasonNoGeneration
	case r.ManyPrompts:
		return reasonManyPrompts
	}
	return ""
}
