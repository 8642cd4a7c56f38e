package dispatch

import (
	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/unit"
)

// placed is a decision with its reservations taken.
type placed struct {
	route.Decision
	transfer       uint64
	serve, prefill *load.Reservation // prefill is nil when aggregated
	prompt         unit.Tokens
}

func (p *placed) slot() *load.Slot { return p.Slots[p.Serve] }

// place decides and reserves in one step.
func (l *Life) place() (*placed, error) {
	d := l.d
	now := d.deps.Clock.Now()
	lined := d.table.Columns(d.deps.View())
	var samples *fleet.Samples
	if d.deps.Samples != nil {
		samples = d.deps.Samples()
	}
	p := &placed{prompt: l.model.ratio.Tokens(l.req.Prompt)}
	q := route.Query{Model: l.req.Model, Prompt: p.prompt, Now: now, Tried: l.tried}

	d.deciding.Lock()
	defer d.deciding.Unlock()
	q.Turn = l.model.turn
	l.model.turn++
	var err error
	if p.Decision, err = d.router.Decide(&q, lined, samples); err != nil {
		return nil, err
	}
	if p.Path == route.Disaggregated {
		p.transfer = d.rng.Uint64() | 1 // never zero
		p.prefill = p.Slots[p.Prefill].Reserve(load.Prefill, p.prompt)
		p.serve = p.slot().Reserve(load.Decode, 0)
	} else {
		p.serve = p.slot().Reserve(load.Prefill, p.prompt)
	}
	d.decision.Observe(d.deps.Clock.Now().Sub(now).Seconds())
	l.explain(p)
	return p, nil
}

func (l *Life) explain(p *placed) {
	id := func(i int) fleet.WorkerID {
		if i == route.None {
			return ""
		}
		return p.View.Workers[i].ID
	}
	l.path = p.Path
	l.placement = &Placement{
		Path: p.Path.String(), Reason: p.Reason, Policy: p.Policy,
		Serve: id(p.Serve), Prefill: id(p.Prefill), NextServe: id(p.NextServe), NextPrefill: id(p.NextPrefill),
		Failovers: len(l.tried),
	}
	if len(l.tried) > 0 {
		l.model.failovers.Inc()
	}
	l.d.deps.Registry.Counter(measure.Paths, l.model.name, p.Path.String(), p.Reason).Inc()
}

func (l *Life) call(p *placed) *engine.Call {
	c := &engine.Call{RequestID: l.req.ID, Path: l.req.Path, Body: l.req.Body, Stream: l.req.Stream}
	if p.Path == route.Disaggregated {
		c.Leg, c.TransferID, c.Peer = engine.Decode, p.transfer, p.Prefiller()
	}
	return c
}
