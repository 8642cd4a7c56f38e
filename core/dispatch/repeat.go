package dispatch

import (
	"context"
	"slices"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/load"
)

// lost are the incarnations that a request was lost with, before they had given
// output of it. It is not offered to them again.
type lost struct {
	with []load.Key
	err  error // of the last
}

// repeatable reports whether a request whose worker was lost may begin anew on
// another: the client has nothing of the answer, and computing it twice does no
// harm.
func (l *Life) repeatable(p *placed) bool {
	r, ok := l.d.deps.Adapter(p.Server().Engine).(engine.Repeater)
	return ok && !l.trail.shown && r.Repeatable()
}

// lose says what follows when the worker was lost and the request may go
// elsewhere. What gave output is gone on with. What gave none is only repeated,
// which counts like any other offer and is for another incarnation: the one that
// broke off would most likely do so again.
func (l *Life) lose(p *placed, err error) (verdict, error) {
	l.refusal = nil // it is older news
	if l.asksIDs() && l.trail.moved < l.d.cfg.Migrations {
		l.trail.moved++
		l.trail.lost, l.trail.pending = err, true
	}
	if l.output {
		l.tried = append(l.tried[:0], p.slot().Key)
		return onward, err
	}
	l.lost.with, l.lost.err = append(l.lost.with, p.slot().Key), err
	return l.next(p, err)
}

// avoided are the incarnations that the request is not offered to now.
func (l *Life) avoided() []load.Key {
	if len(l.lost.with) == 0 {
		return l.tried
	}
	return slices.Concat(l.lost.with, l.tried)
}

// forsaken reports whether every worker in service is one that the request was
// lost with, so that waiting for them is in vain. One that accepts no connections
// any more has died of whatever it was: it is left out, and who answers there
// next is not the one that broke off.
func (l *Life) forsaken(ctx context.Context) bool {
	if len(l.lost.with) == 0 {
		return false
	}
	now := l.d.deps.Clock.Now()
	lined := l.d.table.Columns(l.d.deps.View())
	var left []int32
	for _, i := range lined.View.Serving(l.req.Model) {
		slot := lined.Slots[i]
		if !serves(&lined.View.Workers[i]) || slot.OutOfService(now) {
			continue
		}
		if !slices.Contains(l.lost.with, slot.Key) {
			return false
		}
		left = append(left, i)
	}
	alive := false
	for _, i := range left {
		slot := lined.Slots[i]
		if l.d.deps.Reach(ctx, &lined.View.Workers[i]) == nil || ctx.Err() != nil {
			alive = true
			continue
		}
		l.eject(slot, reasonConnect)
		l.lost.with = slices.DeleteFunc(l.lost.with, func(k load.Key) bool { return k == slot.Key })
	}
	return alive
}
