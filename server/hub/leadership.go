package hub

import (
	"context"
	"errors"
	"time"

	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/traffic"
)

var errMoved = errors.New("another node leads")

// lead merges with the node's own server until it leads no more.
func (l *Link) lead(ctx context.Context) error {
	x := leadership{link: l, server: l.cfg.Server, changes: l.cfg.Table.Changes(), pace: newPace(l.cfg.Clock)}
	defer x.pace.stop()
	if err := x.join(); err != nil {
		return err
	}
	defer x.leave()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	x.me = &session{leader: l.cfg.Gateway, cancel: cancel}
	l.begin(x.me)
	defer l.end(x.me)
	l.self.Store(true)
	defer l.self.Store(false)
	for {
		now, err := x.pace.next(ctx, x.changes.Ready(), x.member.Ready(), x.check)
		if err == nil {
			err = x.give(now)
		}
		if err == nil {
			err = x.take(now)
		}
		if err != nil {
			return err
		}
	}
}

// leadership is a time for which the link's own node leads. What a gateway elsewhere
// sends and receives goes between the table and the server here.
type leadership struct {
	link    *Link
	server  *Server
	changes *load.Changes
	pace    *pace
	me      *session

	member  *load.Member
	page    *traffic.Page
	reports *reports
	own     load.Vector // of this gateway
	others  load.Vector // of the others
	words   uint64      // of this gateway that the server has
	told    bool        // something was taken since the server has settled
}

// join enters all that this gateway has. leave takes it out.
func (x *leadership) join() (err error) {
	cfg := &x.link.cfg
	x.changes.Whole(&x.own)
	x.server.merger.Follow(cfg.View())
	if x.member, err = x.server.merger.Join(cfg.Gateway, cfg.Incarnation, &x.own); err != nil {
		return err
	}
	x.words = 1
	x.page, x.reports = x.server.cfg.Traffic.Open(cfg.Gateway, cfg.Incarnation), newReports(cfg.Traffic)
	return nil
}

func (x *leadership) leave() {
	x.page.Close()
	x.member.Leave()
}

// check ends the leadership when the node leads no more. It is news that the server
// has settled.
func (x *leadership) check(now time.Time) (news bool, err error) {
	x.link.tick(now)
	leads, settled := x.server.leading(now)
	if !leads || !x.link.leader().self {
		return false, errMoved
	}
	return settled && !x.told, nil
}

// give enters what changed here.
func (x *leadership) give(now time.Time) error {
	if news, due := x.reports.due(now); due {
		if err := x.page.Update(now, news); err != nil {
			return err
		}
	}
	x.pace.dirty = x.changes.Take(&x.own)
	x.server.merger.Follow(x.link.cfg.View())
	if x.own.Len() == 0 {
		return nil
	}
	if err := x.member.Update(&x.own); err != nil {
		return err
	}
	x.words++
	return nil
}

// take brings in what the others have, once the server has settled.
func (x *leadership) take(now time.Time) error {
	if _, settled := x.server.leading(now); !settled {
		return nil
	}
	x.told = true
	news, err := x.member.Take(&x.others)
	if err != nil {
		return err
	}
	if leads, _ := x.server.leading(now); !leads {
		return errMoved
	}
	var others *load.Vector
	if news {
		others = &x.others
	}
	x.link.take(x.me, others, x.words, x.server.merger.Gateways())
	return nil
}
