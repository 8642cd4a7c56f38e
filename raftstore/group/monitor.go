package group

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster/yardmaster/core/measure"
)

// ErrLowDisk means that the disk under the log has less room than is kept in
// reserve. The entry was not proposed. It passes when there is room again.
var ErrLowDisk = errors.New("disk is nearly full; entries are refused until there is room")

// metrics are the group's series.
type metrics struct {
	applied, lag, commitIndex, term, leader measure.Gauge
	contact, oldest, trailing               measure.Gauge
	snapshotBytes, freeBytes                measure.Gauge
	commit, snapshotSeconds, restoreSeconds measure.Histogram
	leaderChanges, snapshotFailures         measure.Counter
}

func newMetrics(r *measure.Registry, group string) metrics {
	return metrics{
		applied:          r.Gauge(measure.RaftApplied, group),
		lag:              r.Gauge(measure.RaftLag, group),
		commitIndex:      r.Gauge(measure.RaftCommitIndex, group),
		term:             r.Gauge(measure.RaftTerm, group),
		leader:           r.Gauge(measure.RaftLeader, group),
		contact:          r.Gauge(measure.RaftLastContact, group),
		oldest:           r.Gauge(measure.RaftOldestLog, group),
		trailing:         r.Gauge(measure.RaftTrailing, group),
		snapshotBytes:    r.Gauge(measure.RaftSnapshotBytes, group),
		freeBytes:        r.Gauge(measure.RaftDiskFree, group),
		commit:           r.Histogram(measure.RaftCommit, group),
		snapshotSeconds:  r.Histogram(measure.RaftSnapshotSeconds, group),
		restoreSeconds:   r.Histogram(measure.RaftRestoreSeconds, group),
		leaderChanges:    r.Counter(measure.RaftLeaderChanges, group),
		snapshotFailures: r.Counter(measure.RaftSnapshotFailures, group),
	}
}

// watchEvery is how often the group looks at itself.
const watchEvery = time.Second

// watch keeps the gauges and the disk's watermark until the group ends.
func (g *Group[R]) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	w := watcher[R]{g: g, rate: rate{at: time.Now(), index: g.raft.LastIndex()}}
	for {
		w.look()
		select {
		case <-tick.C:
		case <-g.faulted:
			return
		case <-g.ctx.Done():
			return
		}
	}
}

type watcher[R any] struct {
	g      *Group[R]
	rate   rate
	leader raft.ServerID
}

func (w *watcher[R]) look() {
	g := w.g
	now := time.Now()
	g.metrics.term.Set(float64(g.raft.CurrentTerm()))
	// The library's indices, as Status tells them: those of the state machine's
	// commands stand still while there is only Raft's own work. What is applied is
	// read first, so that it is never ahead.
	applied, committed := g.raft.AppliedIndex(), g.raft.CommitIndex()
	g.metrics.applied.Set(float64(applied))
	g.metrics.commitIndex.Set(float64(committed))
	g.metrics.lag.Set(float64(committed - min(applied, committed)))
	if c := g.LastContact(); !c.IsZero() {
		g.metrics.contact.Set(max(now.Sub(c), 0).Seconds())
	}
	if _, id := g.raft.LeaderWithID(); id != "" && id != w.leader {
		if w.leader != "" {
			g.metrics.leaderChanges.Inc()
		}
		w.leader = id
	}
	w.lookAtLog(now)
	g.adjust(g.raft.GetConfiguration().Configuration())
	w.lookAtDisk()
	g.lookAtTransfer()
	g.said.over(now, g.log)
}

func (w *watcher[R]) lookAtLog(now time.Time) {
	g := w.g
	if first, err := g.store.FirstIndex(); err == nil && first > 0 {
		var l raft.Log
		for i := first; i < first+2 && l.AppendedAt.IsZero(); i++ { // what a group was founded with has no date
			if g.store.Entry(i, &l) != nil {
				break
			}
		}
		if !l.AppendedAt.IsZero() {
			g.metrics.oldest.Set(max(now.Sub(l.AppendedAt), 0).Seconds())
		}
	}
	if perSecond := w.rate.observe(now, g.raft.LastIndex()); perSecond > 0 {
		g.metrics.trailing.Set(float64(g.cfg.TrailingLogs) / perSecond)
	}
}

// rate is the smoothed rate of entries.
type rate struct {
	at    time.Time
	index uint64
	value float64 // entries per second; 0 before anything was seen
}

func (r *rate) observe(now time.Time, index uint64) float64 {
	seconds := now.Sub(r.at).Seconds()
	if seconds <= 0 || index < r.index {
		r.at, r.index = now, index
		return r.value
	}
	seen := float64(index-r.index) / seconds
	r.at, r.index = now, index
	if r.value == 0 {
		r.value = seen
	}
	r.value += (seen - r.value) / 16
	return r.value
}

// lookAtDisk refuses entries while the disk has less than the reserve. A leader
// hands over first: a follower on a full disk fails alone.
func (w *watcher[R]) lookAtDisk() {
	g := w.g
	if g.cfg.FreeBytes == nil {
		return
	}
	free, err := g.cfg.FreeBytes()
	if err != nil {
		g.log.Warn("free space of the disk is not known", "error", err)
		return
	}
	g.metrics.freeBytes.Set(float64(free))
	low := free < g.cfg.ReserveBytes
	if was := g.lowDisk.Swap(low); low && !was {
		g.cfg.Registry.Counter(measure.RaftGuardTrips, g.cfg.Name, "low_disk").Inc()
		g.log.Error("disk under the Raft log is nearly full: entries are refused and leadership is given up; free some space",
			"free_bytes", free, "reserve_bytes", g.cfg.ReserveBytes)
	} else if was && !low {
		g.log.Info("disk under the Raft log has room again", "free_bytes", free)
	}
	if low && g.raft.State() == raft.Leader && voters(g.raft.GetConfiguration().Configuration()) > 1 {
		ctx, cancel := context.WithTimeout(g.ctx, 2*g.cfg.Heartbeat)
		defer cancel()
		if err := g.Transfer(ctx, ""); err != nil {
			g.log.Debug("leadership was not handed over", "error", err)
		}
	}
}

// adjust fits what depends on the number of voters: alone, a slow disk is better
// than none; among others, they take over.
func (g *Group[R]) adjust(c raft.Configuration) {
	if g.cfg.WriteDeadline > 0 {
		return
	}
	d := deadlineAlone
	if voters(c) > 1 {
		d = deadlineAmongOthers
	}
	g.store.SetDeadline(d)
}
