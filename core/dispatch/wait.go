package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/route"
)

// errFull means that every worker that could serve has as many requests as it
// can use; errUnreachable that those left did not accept connections lately.
var (
	errFull        = errors.New("every worker is full")
	errUnreachable = errors.New("no worker can be reached")
)

const (
	// frontPoll is how often the front of a line looks for a worker that nobody
	// announced: a new view, an ejection that has run out.
	frontPoll = 20 * time.Millisecond
	// namePoll is how often a request looks whether its model has come to be known.
	namePoll = 100 * time.Millisecond
)

// meet finds the request's model. While there is no worker at all, nobody knows
// which models there will be, and the request waits for the first.
func (l *Life) meet(ctx context.Context) error {
	if l.model = l.d.model(l.d.deps.View(), l.req.Model); l.model != nil {
		return nil
	}
	if len(l.d.deps.View().Workers) > 0 {
		return unknown(l.req.Model)
	}
	spot, err := l.d.nameless.Join()
	if err != nil {
		return noCapacity("no worker is registered", err)
	}
	defer spot.Leave()
	for {
		left := l.d.cfg.Deadlines.Hold - spot.Waited()
		if left <= 0 {
			return noCapacity("no worker is registered", route.ErrNoWorker)
		}
		if _, err := spot.Await(ctx, min(left, namePoll)); err != nil {
			return causeOf(ctx)
		}
		view := l.d.deps.View()
		if l.model = l.d.model(view, l.req.Model); l.model != nil {
			return nil
		}
		if len(view.Workers) > 0 {
			return unknown(l.req.Model)
		}
	}
}

func unknown(model string) error {
	return &errs.Error{
		Kind: errs.NotFound, Client: fmt.Sprintf("the model %q does not exist", model),
		Param: "model", Code: "model_not_found",
	}
}

// seat places the request. While no worker can take it, it waits in its model's
// line, behind those who came before.
func (l *Life) seat(ctx context.Context) (*placed, error) {
	if l.model.line.Len() == 0 {
		p, err := l.place(ctx)
		if !l.mayWait(err) {
			return p, err
		}
	}
	spot, err := l.model.line.Join()
	if err != nil {
		return nil, l.turnedAway(err)
	}
	defer spot.Leave()
	return l.wait(ctx, spot)
}

// mayWait reports whether err may pass by itself. After a refusal it may too,
// but the engine's own answer is worth more than a later one of ours.
func (l *Life) mayWait(err error) bool {
	return err != nil && l.refusal == nil
}

func (l *Life) wait(ctx context.Context, spot *admit.Spot) (*placed, error) {
	l.dog.rest()
	l.tried = l.tried[:0] // who did not take it before may by now
	for {
		front := spot.Front()
		if front {
			p, err := l.place(ctx)
			if !l.mayWait(err) {
				return p, err
			}
		}
		contended := l.contended()
		limit := l.d.cfg.Deadlines.Hold
		if contended {
			limit = l.d.cfg.Deadlines.Queue
		}
		left := limit - spot.Waited()
		if left <= 0 {
			return nil, l.waitedOut(contended)
		}
		if front {
			left = min(left, frontPoll)
		}
		if _, err := spot.Await(ctx, left); err != nil {
			return nil, causeOf(ctx)
		}
	}
}

// contended reports whether workers for the model are there and only busy.
func (l *Life) contended() bool {
	now := l.d.deps.Clock.Now()
	lined := l.d.table.Columns(l.d.deps.View())
	for _, i := range lined.View.Serving(l.req.Model) {
		if serves(&lined.View.Workers[i]) && !lined.Slots[i].OutOfService(now) {
			return true
		}
	}
	return false
}

func serves(w *fleet.Worker) bool { return w.Role&fleet.RoleDecode != 0 && !w.Draining }

// waitedOut is the answer to a request that waited as long as it may.
func (l *Life) waitedOut(contended bool) error {
	if !contended {
		return noCapacity("no worker for this model can take requests now", route.ErrNoWorker)
	}
	return &errs.Error{
		Kind: errs.Saturated, Client: "all workers for this model are busy", Code: "queue_timeout",
		RetryAfter: time.Second, Cause: errFull,
	}
}

// turnedAway is the answer to a request that found the line full.
func (l *Life) turnedAway(err error) error {
	if !l.contended() {
		return noCapacity("no worker for this model can take requests now", err)
	}
	e := *errs.As(err)
	e.Code = "queue_full"
	return &e
}

// constrain judges a decision that had to pass over a veto of the slots'. The
// caller holds Dispatcher.deciding.
func (l *Life) constrain(d *route.Decision, now time.Time) error {
	if !d.Ejected {
		return nil
	}
	slot := d.Slots[d.Serve]
	if slot.Full() {
		return errFull
	}
	// Better to wait for a worker that is well than to try one that is not.
	for _, i := range d.View.Serving(l.req.Model) {
		if s := d.Slots[i]; serves(&d.View.Workers[i]) && s.Full() && !s.LeftOut(now) {
			return errFull
		}
	}
	if l.offers > 0 && slot.OutOfService(now) {
		return errUnreachable // it is probed; this request has asked once already
	}
	return nil
}

// maxProbes bounds the workers that one round of Heal probes.
const maxProbes = 64

// Heal probes, every so often until ctx ends, the workers that are left out for
// connections they did not accept, and puts those back that probe reaches. A
// restarted worker is so in service again long before its ejection runs out.
// probe bounds its own time.
func (d *Dispatcher) Heal(ctx context.Context, every time.Duration, probe func(context.Context, *fleet.Worker) error) {
	timer := d.deps.Clock.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
		}
		d.heal(ctx, probe)
		timer.Reset(every)
	}
}

func (d *Dispatcher) heal(ctx context.Context, probe func(context.Context, *fleet.Worker) error) {
	now := d.deps.Clock.Now()
	lined := d.table.Columns(d.deps.View())
	type reply struct {
		slot *load.Slot
		err  error
	}
	replies := make(chan reply, maxProbes)
	sent := 0
	for i, slot := range lined.Slots {
		if !slot.Unreachable(now) || sent == maxProbes {
			continue
		}
		sent++
		go func() { replies <- reply{slot, probe(ctx, &lined.View.Workers[i])} }()
	}
	for range sent {
		if r := <-replies; r.err == nil {
			r.slot.Heal()
			d.lobby.Stir()
		}
	}
}
