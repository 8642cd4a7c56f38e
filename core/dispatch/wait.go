package dispatch

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/fleet"
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

// meet finds the request's model. While there is no worker at all, and no models
// are declared, nobody knows which there will be, and the request waits for the
// first worker.
func (l *Life) meet(ctx context.Context) error {
	if l.model = l.d.model(l.d.deps.View(), l.req.Model); l.model != nil {
		return nil
	}
	if len(l.d.cfg.Models) > 0 || len(l.d.deps.View().Workers) > 0 {
		return l.unknown()
	}
	spot, err := l.d.nameless.Join(0, nil)
	if err != nil {
		return noCapacity(l.d.cfg.Absent, err)
	}
	defer func() {
		l.held += spot.Waited()
		spot.Leave()
	}()
	for {
		left := l.d.cfg.Deadlines.Hold - spot.Waited()
		if left <= 0 {
			return noCapacity(l.d.cfg.Absent, route.ErrNoWorker)
		}
		if _, err := spot.Await(ctx, min(left, namePoll)); err != nil {
			return causeOf(ctx)
		}
		view := l.d.deps.View()
		if l.model = l.d.model(view, l.req.Model); l.model != nil {
			return nil
		}
		if len(view.Workers) > 0 {
			return l.unknown()
		}
	}
}

// maxNamed bounds the models that the answer to an unknown one names.
const maxNamed = 5

// unknown is the answer to a model that nobody serves and that is not declared:
// the name may only be misspelt, so some that are served follow.
func (l *Life) unknown() error {
	text := fmt.Sprintf("the model %q does not exist", l.req.Model)
	served := l.d.deps.View().Models()
	if len(served) == 0 {
		served = l.d.cfg.Models // which are waited for
	}
	if len(served) > 0 {
		named := make([]string, 0, maxNamed)
		for _, name := range served[:min(len(served), maxNamed)] {
			named = append(named, strconv.Quote(name))
		}
		text += "; served: " + strings.Join(named, ", ")
		if more := len(served) - len(named); more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
	}
	return &errs.Error{Kind: errs.NotFound, Client: text, Param: "model", Code: "model_not_found"}
}

// seat places the request. While no worker can take it, it waits in its model's
// line, behind those who came before.
func (l *Life) seat(ctx context.Context) (*placed, error) {
	if l.model.line.Len() == 0 && !l.standing.queues {
		p, err := l.place(ctx)
		if !l.mayWait(err) {
			return p, err
		}
	}
	l.lineUp()
	spot, err := l.model.line.Join(l.standing.priority, l.standing.visit)
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
		if l.forsaken(ctx) {
			return nil, l.lost.err
		}
		front := spot.Front()
		if front {
			p, err := l.place(ctx)
			if !l.mayWait(err) {
				return p, err
			}
		}
		contended := l.contended()
		spent, limit := &l.held, l.d.cfg.Deadlines.Hold
		if contended {
			spent, limit = &l.queued, l.d.cfg.Deadlines.Queue
		}
		left := limit - *spent
		if left <= 0 {
			return nil, l.waitedOut(contended)
		}
		if front {
			left = min(left, frontPoll)
		}
		before := spot.Waited()
		_, err := spot.Await(ctx, left)
		*spent += spot.Waited() - before
		if err != nil {
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

// unreachable is what clients are told when no worker accepted their request.
const unreachable = "no worker for this model can be reached"

// missing says which workers the model lacks.
func (l *Life) missing() string {
	now := l.d.deps.Clock.Now()
	lined := l.d.table.Columns(l.d.deps.View())
	workers := lined.View.Serving(l.req.Model)
	if len(workers) == 0 {
		if len(lined.View.Workers) == 0 {
			return l.d.cfg.Absent
		}
		return "no worker for this model is up"
	}
	generating, staying := false, false
	for _, i := range workers {
		w := &lined.View.Workers[i]
		generating = generating || w.Role&fleet.RoleDecode != 0
		if serves(w) {
			staying = true
			if !lined.Slots[i].OutOfService(now) {
				return "no worker for this model can take requests now"
			}
		}
	}
	switch {
	case !generating:
		return "no decode worker for this model is up, only prefill workers"
	case !staying:
		return "every worker for this model is draining"
	}
	return unreachable
}

// waitedOut is the answer to a request that waited as long as it may.
func (l *Life) waitedOut(contended bool) error {
	if !contended {
		return noCapacity(l.missing(), route.ErrNoWorker)
	}
	return &errs.Error{
		Kind: errs.Saturated, Client: "all workers for this model are busy", Code: "queue_timeout",
		RetryAfter: time.Second, Cause: errFull,
	}
}

// turnedAway is the answer to a request that found the line full.
func (l *Life) turnedAway(err error) error {
	if !l.contended() {
		return noCapacity(l.missing(), err)
	}
	e := *errs.As(err)
	e.Code = "queue_full"
	return &e
}

// constrain judges a decision that had to pass over a veto of the slots'. The
// caller holds Dispatcher.deciding.
func (l *Life) constrain(d *route.Decision, now time.Time) error {
	if !d.PassedBy {
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
