package dispatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/unit"
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

// attempt offers the request to one worker. again says that this worker did not
// take it and another may; err is then why.
func (l *Life) attempt(ctx context.Context) (again bool, err error) {
	p, err := l.place(ctx)
	if err != nil {
		return false, l.unplaced(err)
	}
	l.reserved = p.serve
	defer p.serve.Close()
	if p.Path == route.Disaggregated {
		leg := l.startPrefill(ctx, p)
		defer leg.stop()
	}
	w := p.Server()
	adapter := l.d.deps.Adapter(w.Engine)
	if adapter == nil {
		return l.next(p, noCapacity("the model's worker cannot be reached", fmt.Errorf("dispatch: no adapter for engine %q of worker %q", w.Engine, w.ID)))
	}
	now := l.d.deps.Clock.Now()
	if len(l.tried) == 0 {
		l.model.queued.Observe(now.Sub(l.accepted).Seconds())
	}
	if l.req.Stream {
		l.dog.expect(now, l.d.cfg.Deadlines.Header, stageHeader)
	}
	resp, err := adapter.Do(ctx, w, l.call(p))
	if err != nil {
		return l.undelivered(ctx, p, err)
	}
	defer func() { _ = resp.Body.Close() }() // what was read is whole or already an error
	return l.answered(ctx, p, resp)
}

// unplaced turns a routing error into the client's. An engine's refusal from an
// earlier attempt says more than "nobody left".
func (l *Life) unplaced(err error) error {
	if l.refusal != nil {
		return l.passOn()
	}
	if len(l.tried) > 0 {
		return noCapacity("no worker for this model can be reached", err)
	}
	return noCapacity("no worker for this model can take requests now", err)
}

// exhausted ends a request whose attempts are used up.
func (l *Life) exhausted(err error) error {
	if l.refusal != nil {
		return l.passOn()
	}
	return err
}

// passOn answers with the refusal an engine gave.
func (l *Life) passOn() error {
	r := l.refusal
	status, body := edge.Envelope(r.status, r.body)
	return l.whole(Head{Status: status, ContentType: "application/json", RetryAfter: r.retryAfter, Placement: l.placement}, body)
}

// next marks the worker as tried and asks for another attempt.
func (l *Life) next(p *placed, err error) (bool, error) {
	l.tried = append(l.tried, p.slot().Key)
	return true, err
}

// undelivered handles a leg that got no answer.
func (l *Life) undelivered(ctx context.Context, p *placed, err error) (bool, error) {
	switch {
	case ctx.Err() != nil:
		return false, causeOf(ctx)
	case errors.Is(err, engine.ErrConnect):
		l.eject(p.slot(), "connect")
		return l.next(p, noCapacity("no worker for this model can be reached", err))
	}
	return false, broken(err)
}

// answered handles a leg whose status is known.
func (l *Life) answered(ctx context.Context, p *placed, resp *engine.Response) (bool, error) {
	if resp.Status == engine.StatusStaleEpoch {
		l.eject(p.slot(), engine.ReasonStaleEpoch)
		return l.next(p, noCapacity("the worker has restarted", fmt.Errorf("dispatch: %q is not at epoch %d", p.Server().ID, p.Server().Epoch)))
	}
	p.slot().Reached()
	l.placement.KV = resp.KV
	switch {
	case resp.Status >= 200 && resp.Status < 300 && l.req.Stream:
		return false, l.relay(ctx, resp)
	case resp.Status >= 200 && resp.Status < 300:
		return false, l.collect(ctx, resp)
	}
	body, err := readAll(resp.Body, maxRefusal)
	if err != nil && !errors.Is(err, errTooLong) {
		if ctx.Err() != nil {
			return false, causeOf(ctx)
		}
		body = nil // the status says enough
	}
	l.refusal = &refusal{status: resp.Status, retryAfter: resp.RetryAfter, body: body}
	if resp.Status == 429 || resp.Status == 503 {
		// The engine did not begin: busy or draining, which is no fault.
		return l.next(p, noCapacity("every worker for this model is busy", nil))
	}
	return false, l.passOn()
}

// eject leaves a worker out that could not be reached.
func (l *Life) eject(slot *load.Slot, reason string) {
	if slot.Eject(l.d.deps.Clock.Now(), l.d.cfg.Eject) {
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
	return &errs.Error{Kind: errs.Upstream, Client: "the engine broke the connection", Code: "engine_broken", Cause: err}
}

var errTooLong = errors.New("dispatch: answer is longer than the limit")

// readAll reads r to its end, at most limit bytes. When there are more, it
// returns the first limit and errTooLong.
func readAll(r io.Reader, limit unit.Bytes) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err == nil && unit.Bytes(len(body)) > limit {
		return body[:limit], errTooLong
	}
	return body, err
}

// prefillLeg is the running prefill leg of a disaggregated request.
type prefillLeg struct {
	cancel context.CancelFunc
	ended  chan struct{}
	fault  string // valid when ended is closed
	life   *Life
}

// startPrefill sends the prompt to the prefill worker. The leg runs beside the
// client's stream; its failure is not the request's: the decode worker computes
// the prompt itself.
func (l *Life) startPrefill(ctx context.Context, p *placed) *prefillLeg {
	ctx, cancel := context.WithCancel(ctx)
	leg := &prefillLeg{cancel: cancel, ended: make(chan struct{}), life: l}
	call := &engine.Call{
		RequestID: l.req.ID, Path: l.req.Path, Body: l.req.Body, Leg: engine.Prefill,
		TransferID: p.transfer, Peer: p.Server(),
	}
	w, slot, reservation := p.Prefiller(), p.Slots[p.Prefill], p.prefill
	go func() {
		defer close(leg.ended)
		defer reservation.Close()
		leg.fault = l.prefill(ctx, w, slot, call)
	}()
	return leg
}

// stop cancels the leg, which has no purpose once the decode leg is over, and
// waits for its end.
func (leg *prefillLeg) stop() {
	leg.cancel()
	<-leg.ended
	leg.life.placement.PrefillFault = leg.fault
}

// prefill runs the leg and names its failure; empty is success or cancellation.
func (l *Life) prefill(ctx context.Context, w *fleet.Worker, slot *load.Slot, call *engine.Call) (fault string) {
	adapter := l.d.deps.Adapter(w.Engine)
	if adapter == nil {
		return "no_adapter"
	}
	resp, err := adapter.Do(ctx, w, call)
	switch {
	case ctx.Err() != nil:
		if err == nil {
			_ = resp.Body.Close()
		}
		return ""
	case errors.Is(err, engine.ErrConnect):
		l.eject(slot, "connect")
		return "connect"
	case err != nil:
		return "broken"
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.Status == engine.StatusStaleEpoch {
		l.eject(slot, engine.ReasonStaleEpoch)
		return engine.ReasonStaleEpoch
	}
	slot.Reached()
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxRefusal)); err != nil && ctx.Err() == nil {
		return "broken"
	}
	if resp.Status < 200 || resp.Status > 299 {
		return "refused"
	}
	return ""
}

// elapsed is the time between two instants, never negative.
func elapsed(from, to time.Time) time.Duration { return max(to.Sub(from), 0) }
