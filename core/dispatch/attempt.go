package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/wire/edge"
)

// refusal is an engine's answer that may still be passed on when no other
// worker takes the request.
type refusal struct {
	status     int
	retryAfter string
	body       []byte
}

// maxRefusal bounds what is read of an engine's error, in bytes.
const maxRefusal = 256 << 10

// verdict says what follows an attempt.
type verdict uint8

const (
	over      verdict = iota // the request has ended, well or with an error
	elsewhere                // this worker did not take it, another may
	anew                     // its prefill leg failed: begin again, on one worker
	onward                   // the worker was lost after some output: go on elsewhere
)

// attempt offers the request to the worker it was placed on. Unless the verdict
// is over, err is why it did not end there.
func (l *Life) attempt(ctx context.Context, p *placed) (verdict, error) {
	l.reserved, l.server, l.output = p.serve, p.slot(), false
	defer l.d.lobby.Stir()
	defer p.serve.Close()
	legCtx := ctx
	if p.Path == route.Disaggregated {
		legCtx, l.legs = l.startPrefill(ctx, p)
		defer l.legs.stop()
	}
	w := p.Server()
	adapter := l.d.deps.Adapter(w.Engine)
	if adapter == nil {
		return l.next(p, noCapacity("the model's worker cannot be reached", fmt.Errorf("dispatch: no adapter for engine %q of worker %q", w.Engine, w.ID)))
	}
	now := l.d.deps.Clock.Now()
	if l.placement.Failovers == 0 && l.trail.moved == 0 {
		l.model.queued.Observe(now.Sub(l.accepted).Seconds())
	}
	if l.req.Stream {
		l.dog.expect(now, l.d.cfg.Deadlines.Header, stageHeader)
		if p.Path == route.Aggregated {
			l.vigil = p.slot().Watch(now, p.serve.Prompt())
		}
		defer l.vigil.End()
	}
	resp, err := adapter.Do(legCtx, w, l.call(p))
	if err != nil {
		return l.undelivered(ctx, p, err)
	}
	defer func() { _ = resp.Body.Close() }() // what was read is whole or already an error
	next, err := l.answered(ctx, p, resp)
	switch {
	case l.abandoned():
		l.together = reasonPrefillFailed
		return anew, err
	case next == over && err != nil && ctx.Err() == nil && (l.continuable(err) || cutOff(err) && l.repeatable(p)):
		return l.lose(p, err)
	case err != nil:
		l.doubt(ctx, p)
	}
	return next, err
}

// doubt blames the worker for a stream that gave no token in its time.
func (l *Life) doubt(ctx context.Context, p *placed) {
	if e, ok := errors.AsType[*errs.Error](context.Cause(ctx)); ok && e.Kind == errs.Timeout && e.Code != stageTotal.late().Code && p.Path == route.Aggregated {
		p.slot().Doubt(l.d.deps.Clock.Now())
	}
}

// unplaced turns a routing error into the client's. An engine's refusal from an
// earlier attempt says more than "nobody left".
func (l *Life) unplaced(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return causeOf(ctx)
	}
	if l.begun || l.refusal != nil {
		return l.passOn()
	}
	if e, ok := errors.AsType[*errs.Error](err); ok {
		return e
	}
	if len(l.tried) > 0 {
		return noCapacity(unreachable, err)
	}
	return noCapacity(l.missing(), err)
}

// exhausted ends a request whose attempts are used up.
func (l *Life) exhausted(err error) error {
	if l.begun || l.refusal != nil {
		return l.passOn()
	}
	return err
}

// passOn answers with the refusal an engine gave. A stream that has begun ends
// with what broke it.
func (l *Life) passOn() error {
	if l.begun {
		return l.unfinished()
	}
	r := l.refusal
	status, body := edge.Envelope(r.status, r.body)
	return l.whole(Head{
		Status: status, ContentType: "application/json", RetryAfter: r.retryAfter,
		NoRetry: l.placement.Failovers > 0, Placement: l.placement,
	}, body)
}

// unfinished is the error of a stream that no worker goes on with.
func (l *Life) unfinished() error {
	if l.trail.lost != nil {
		return l.trail.lost
	}
	return &errs.Error{Kind: errs.Upstream, Client: "the engine ended the stream before it was complete", Code: codeTruncated}
}

// next marks the worker as tried and asks for another attempt.
func (l *Life) next(p *placed, err error) (verdict, error) {
	l.tried = append(l.tried, p.slot().Key)
	return elsewhere, err
}

// undelivered handles a leg that got no answer.
func (l *Life) undelivered(ctx context.Context, p *placed, err error) (verdict, error) {
	switch {
	case ctx.Err() != nil:
		l.doubt(ctx, p)
		return over, causeOf(ctx)
	case l.abandoned():
		l.together = reasonPrefillFailed
		return anew, err
	case errors.Is(err, engine.ErrConnect):
		l.eject(p.slot(), reasonConnect)
		return l.next(p, noCapacity(unreachable, err))
	case l.begun, l.lostUnseen(p), l.repeatable(p): // another worker may still go on, or begin
		return l.lose(p, broken(err))
	}
	return over, broken(err)
}

// answered handles a leg whose status is known.
func (l *Life) answered(ctx context.Context, p *placed, resp *engine.Response) (verdict, error) {
	if resp.Status == engine.StatusStaleEpoch {
		l.eject(p.slot(), engine.ReasonStaleEpoch)
		return l.next(p, noCapacity("the worker has restarted", fmt.Errorf("dispatch: %q is not at epoch %d", p.Server().ID, p.Server().Epoch)))
	}
	p.slot().Reached()
	l.placement.KV = resp.KV
	switch {
	case resp.Status >= 200 && resp.Status < 300 && l.req.Stream:
		p.slot().Took()
		if !l.continues(resp) {
			return over, l.unfinished()
		}
		l.migrated()
		return over, l.relay(ctx, resp)
	case resp.Status >= 200 && resp.Status < 300:
		p.slot().Took()
		err := l.collect(ctx, resp)
		if err == nil {
			p.slot().Answered(l.d.deps.Clock.Now())
		}
		return over, err
	}
	if p.Path == route.Disaggregated && engine.RefusesLeg(resp.Reason) {
		l.together = reasonLegRefused
		return anew, errLegRefused
	}
	if !l.keep() {
		return over, errPrefillLost
	}
	body, err := l.readAll(resp.Body, resp.Length, maxRefusal)
	if err != nil && !errors.Is(err, errTooLong) {
		if ctx.Err() != nil {
			return over, causeOf(ctx)
		}
		body = nil // the status says enough
	}
	l.refusal = &refusal{status: resp.Status, retryAfter: resp.RetryAfter, body: body}
	if resp.Status == 429 || resp.Status == 503 {
		// The engine did not begin: busy or draining, which is no fault.
		p.slot().Refused(l.d.deps.Clock.Now())
		return l.next(p, noCapacity("every worker for this model is busy", nil))
	}
	return over, l.passOn()
}

// reasonConnect is why a worker is left out that accepted no connection.
const reasonConnect = "connect"

// eject leaves a worker out that could not be reached.
func (l *Life) eject(slot *load.Slot, reason string) {
	eject := slot.Eject
	if reason == reasonConnect {
		eject = slot.EjectUnreachable
	}
	if eject(l.d.deps.Clock.Now(), l.d.cfg.Eject) {
		l.d.deps.Registry.Counter(measure.Ejections, string(slot.Key.ID), reason).Inc()
	}
}

// causeOf is why ctx ended: a deadline's or the server's own error, else the
// client left.
func causeOf(ctx context.Context) error {
	cause := context.Cause(ctx)
	if e, ok := errors.AsType[*errs.Error](cause); ok {
		return e
	}
	return &errs.Error{Kind: errs.Canceled, Client: "the client left", Cause: cause}
}

func broken(err error) error {
	return &errs.Error{Kind: errs.Upstream, Client: "the engine broke the connection", Code: codeBroken, Cause: err}
}

// elapsed is the time between two instants, never negative.
func elapsed(from, to time.Time) time.Duration { return max(to.Sub(from), 0) }
