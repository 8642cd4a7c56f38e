package wal

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// A leader's entries need not be on its own disk before they are sent: that they
// are on a quorum's, its own among them, matters when they are committed. So where
// Behind allows it StoreLogs takes entries into memory and returns, a goroutine
// writes them, and whoever would count on them asks [Guarded.Await] first.

// maxRecent and maxRecentBytes bound the entries that are kept in memory because
// they are about to be read: to be sent to the others, and to be applied.
const (
	maxRecent      = 512
	maxRecentBytes = 2 << 20
)

// recent is the newest entries of the log, without a gap, of which the last ones
// may not be written yet. The lock of Guarded is around it.
type recent struct {
	logs  []*raft.Log
	bytes int
	// unwritten is how many of the last ones are not on disk.
	unwritten int
}

// add appends entries. What it held before is forgotten if they do not follow it.
func (r *recent) add(logs []*raft.Log, unwritten bool) {
	if n := len(r.logs); n > 0 && logs[0].Index != r.logs[n-1].Index+1 {
		*r = recent{}
	}
	for _, l := range logs {
		r.logs = append(r.logs, l)
		r.bytes += len(l.Data)
	}
	if unwritten {
		r.unwritten += len(logs)
	}
	r.trim()
}

// trim forgets the oldest of those that are written.
func (r *recent) trim() {
	drop := 0
	for drop < len(r.logs)-r.unwritten && (len(r.logs)-drop > maxRecent || r.bytes > maxRecentBytes) {
		r.bytes -= len(r.logs[drop].Data)
		r.logs[drop] = nil
		drop++
	}
	r.logs = r.logs[drop:]
}

// forget lets go of everything unless only older entries were deleted.
func (r *recent) forget(from, to uint64) {
	if n := len(r.logs); n > 0 && from <= r.logs[n-1].Index && to >= r.logs[0].Index {
		*r = recent{logs: r.pending(), unwritten: r.unwritten}
		for _, l := range r.logs {
			r.bytes += len(l.Data)
		}
	}
}

func (r *recent) find(index uint64) *raft.Log {
	if len(r.logs) == 0 || index < r.logs[0].Index || index-r.logs[0].Index >= uint64(len(r.logs)) {
		return nil
	}
	return r.logs[index-r.logs[0].Index]
}

// pending is the entries that are not on disk. The slice stays as it is.
func (r *recent) pending() []*raft.Log { return r.logs[len(r.logs)-r.unwritten:] }

// Behind lets StoreLogs return before the entries are on disk whenever may says so
// of them. It is asked by the goroutine that calls StoreLogs. Whoever lets it must
// hold everything back that tells of these entries being stored, here or to
// others, until Await has returned.
func (g *Guarded) Behind(may func([]*raft.Log) bool) { g.may.Store(&may) }

// Await returns when no entry up to index waits to be written, within the deadline
// of a write. An error is the fault that keeps them from it.
func (g *Guarded) Await(index uint64) error {
	if g.unwritten.Load() > index {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.unwritten.Load() <= index {
		if g.fault != nil && (!g.writing || !errors.Is(g.fault, errStoreClosed)) {
			return g.fault
		}
		g.written.Wait()
	}
	return nil
}

// nothing is what unwritten holds when everything is on disk.
const nothing = math.MaxUint64

// storeBehind takes entries.
func (g *Guarded) storeBehind(logs []*raft.Log) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fault != nil {
		return fmt.Errorf("store entries: store is out of use: %w", g.fault)
	}
	g.recent.add(logs, true)
	g.unwritten.Store(g.recent.pending()[0].Index)
	if !g.writing {
		g.writing = true
		g.writes.Go(g.writeBehind)
	}
	return nil
}

// writeBehind writes what was taken until nothing is left. The goroutines that send
// it to the others are about to be woken, and would wait for this one's disk if the
// scheduler had queued them behind it: so they go first.
func (g *Guarded) writeBehind() {
	runtime.Gosched()
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.recent.unwritten > 0 && (g.fault == nil || errors.Is(g.fault, errStoreClosed)) {
		batch := g.recent.pending()
		g.mu.Unlock()
		err := g.inTime("store entries", func() error { return g.inner.StoreLogs(batch) })
		g.mu.Lock()
		if err != nil {
			break
		}
		g.recent.unwritten -= len(batch)
		next := uint64(nothing)
		if rest := g.recent.pending(); len(rest) > 0 {
			next = rest[0].Index
		}
		g.unwritten.Store(next)
		g.recent.trim()
		g.written.Broadcast()
	}
	g.writing = false
	g.written.Broadcast()
}

// inTime runs f here. When it takes longer than the deadline the store has failed,
// whatever becomes of f. Time is counted as await does.
func (g *Guarded) inTime(what string, f func() error) error {
	deadline := g.Deadline()
	watch := clockwork{part: deadline / waits, late: func() { _ = g.fail(late(what, deadline)) }}
	watch.start()
	err := f()
	if watch.stop() {
		return late(what, deadline)
	}
	if err != nil {
		return g.fail(fmt.Errorf("%w: %s: %w", ErrFailed, what, explain(err)))
	}
	return nil
}

// clockwork calls late once so many parts are over, unless it is stopped before.
type clockwork struct {
	part time.Duration
	late func()

	mu    sync.Mutex
	timer *time.Timer
	parts int
	over  bool
}

func (c *clockwork) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = time.AfterFunc(c.part, c.tick)
}

func (c *clockwork) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	if c.parts++; c.parts < waits {
		c.timer.Reset(c.part)
		return
	}
	c.over = true
	c.late()
}

// stop reports whether it was too late.
func (c *clockwork) stop() (late bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer.Stop()
	late, c.over = c.over, true
	return late
}
