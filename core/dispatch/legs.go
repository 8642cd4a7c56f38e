package dispatch

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/wire/edge"
)

// errPrefillLost is why a decode leg is given up that would wait for KV which
// never comes.
var errPrefillLost = errors.New("dispatch: the prefill leg failed")

// errLegRefused is why a request begins anew that a worker does not take as a leg.
var errLegRefused = errors.New("dispatch: the worker does not take the request as a leg")

// legs are the two legs of one attempt. The decode leg runs in the caller's
// goroutine, the prefill leg in its own.
type legs struct {
	life   *Life
	decode *load.Slot
	cancel context.CancelFunc // of the prefill leg
	abort  context.CancelCauseFunc
	ended  chan struct{} // closed when the prefill leg is over
	fault  string        // valid then
	usage  edge.Usage    // that the prefill leg reported; valid then
	fate   atomic.Uint32
}

// What became of a decode leg. The first to say so decides.
const (
	undecided uint32 = iota
	kept             // it gives output, whatever becomes of the prefill leg
	givenUp          // its prompt's KV will not come
)

// startPrefill sends the prompt to the prefill worker and returns the context of
// the decode leg. The prefill leg's failure is not the request's. A worker of
// ours tells the decode worker, which then computes the prompt itself; when the
// prefill worker cannot have told, the decode leg is given up, unless it has
// output already, and the request begins anew on one worker.
func (l *Life) startPrefill(ctx context.Context, p *placed) (context.Context, *legs) {
	prefillCtx, cancel := context.WithCancel(ctx)
	decodeCtx, abort := context.WithCancelCause(ctx)
	g := &legs{life: l, decode: p.slot(), cancel: cancel, abort: abort, ended: make(chan struct{})}
	call := &engine.Call{
		RequestID: l.req.ID, Path: l.req.Path, Body: l.body(), Leg: engine.Prefill, Trace: l.req.Trace,
		TransferID: p.transfer, Peer: p.Server(),
	}
	w, slot, reservation := p.Prefiller(), p.Slots[p.Prefill], p.prefill
	go func() {
		defer close(g.ended)
		defer l.d.lobby.Stir()
		defer reservation.Close()
		var told bool
		if g.usage, g.fault, told = l.prefill(prefillCtx, w, slot, call); g.fault != "" && !told && g.fate.CompareAndSwap(undecided, givenUp) {
			abort(errPrefillLost)
		}
	}()
	return decodeCtx, g
}

// stop cancels the prefill leg, which has no purpose once the decode leg is
// over, and waits for its end.
func (g *legs) stop() {
	g.cancel()
	<-g.ended
	g.abort(nil)
	if g.fault != "" {
		g.life.placement.PrefillFault = g.fault
	}
	g.life.watch.Usage = found(g.life.watch.Usage, g.usage, g.life.placement.KV)
	g.life.legs = nil
}

// keep says that the attempt gives output. It reports false when the attempt
// was given up a moment before.
func (l *Life) keep() bool {
	if l.legs == nil {
		return true
	}
	return l.legs.fate.CompareAndSwap(undecided, kept) || l.legs.fate.Load() == kept
}

// abandoned reports whether the attempt was given up.
func (l *Life) abandoned() bool { return l.legs != nil && l.legs.fate.Load() == givenUp }

// prefill runs the leg and returns the usage it reports. fault names its failure;
// empty is success or cancellation. told says that the worker has let the decode worker know.
func (l *Life) prefill(ctx context.Context, w *fleet.Worker, slot *load.Slot, call *engine.Call) (usage edge.Usage, fault string, told bool) {
	adapter := l.d.deps.Adapter(w.Engine)
	if adapter == nil {
		return usage, "no_adapter", false
	}
	resp, err := adapter.Do(ctx, w, call)
	switch {
	case ctx.Err() != nil:
		if err == nil {
			_ = resp.Body.Close()
		}
		return usage, "", false
	case errors.Is(err, engine.ErrConnect):
		l.eject(slot, reasonConnect)
		return usage, reasonConnect, false
	case err != nil:
		return usage, "broken", false
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.Status == engine.StatusStaleEpoch {
		l.eject(slot, engine.ReasonStaleEpoch)
		return usage, engine.ReasonStaleEpoch, false
	}
	slot.Reached()
	if usage, err = report(ctx, resp.Body); err != nil {
		return usage, "broken", false
	}
	if resp.Status < 200 || resp.Status > 299 {
		if resp.Status == 429 || resp.Status == 503 {
			slot.Refused(l.d.deps.Clock.Now())
		}
		return usage, "refused", resp.Reason != "" && !engine.RefusesLeg(resp.Reason)
	}
	return usage, "", false
}
