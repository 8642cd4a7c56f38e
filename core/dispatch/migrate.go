package dispatch

import (
	"errors"
	"strconv"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/wire/edge"
)

// maxTrail bounds the tokens that are kept of one stream.
const maxTrail = 1 << 20

// trail is what a stream's client has been given so far, as tokens, so that
// another worker can go on from there.
type trail struct {
	on    bool     // the engine gives ids
	over  bool     // there were more than are kept
	shown bool     // a chunk went out, if only the role
	moved int      // workers lost so far
	went  int      // times that another worker went on
	lists int      // events with ids
	bill  bool     // the usage event came, which an engine sends when all is said
	ids   []uint32 // the output so far
	lost  error    // why the last worker was lost
	// pending says that a worker was lost and none has gone on yet.
	pending bool
}

// trace reads the ids in events that are about to go out, and takes them out
// unless the client asked for them.
func (l *Life) trace(events []byte) []byte {
	t := &l.trail
	if !t.on {
		return events
	}
	rest, ids, lists := edge.TakeIDs(events, t.ids, !l.req.WantsIDs)
	t.lists += lists
	if t.ids = ids; len(ids) > maxTrail {
		t.ids, t.over = ids[:0], true
	}
	return rest
}

// asksIDs reports whether the engine is asked for the ids that a continuation
// needs.
func (l *Life) asksIDs() bool { return l.req.Continuable && l.d.cfg.Migrations > 0 }

// continuable reports whether err, which ended a stream, means that its worker is gone
// while another could go on: every token that was shown is known, and no end
// was.
func (l *Life) continuable(err error) bool {
	t := &l.trail
	if !t.on || t.over || t.moved >= l.d.cfg.Migrations || l.watch.Finished || t.bill || t.lists < l.watch.Tokens {
		return false
	}
	return cutOff(err)
}

// cutOff reports whether err means that an answer ended before it was complete.
func cutOff(err error) bool {
	e, ok := errors.AsType[*errs.Error](err)
	return ok && (e.Code == codeBroken || e.Code == codeTruncated || e.Code == engine.ReasonDraining)
}

// lostUnseen reports whether a worker that was lost before its status may be
// replaced: its engine is one of those whose streams go on elsewhere, or whose
// calls may be repeated, so that the stream may as well begin elsewhere.
func (l *Life) lostUnseen(p *placed) bool {
	return l.asksIDs() && l.trail.moved < l.d.cfg.Migrations && (p.slot().CanContinue() || l.repeatable(p))
}

// body is what the next worker gets.
func (l *Life) body() []byte {
	if !l.trail.shown {
		return l.req.Body
	}
	return l.req.Continuation(l.trail.ids)
}

// migrated counts a stream that goes on after its worker was lost. One that
// nobody goes on with has not migrated.
func (l *Life) migrated() {
	if !l.trail.pending {
		return
	}
	l.trail.pending = false
	l.trail.went++
	l.placement.Migrations = l.trail.went
	l.model.migrations.Inc()
}

// continues reports whether resp goes on where the stream was lost, as far as
// the engine says. An engine that ignored the request would begin anew.
func (l *Life) continues(resp *engine.Response) bool {
	if !l.trail.shown {
		return true
	}
	return resp.Continues == strconv.Itoa(len(l.trail.ids))
}
