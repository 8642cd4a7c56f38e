package lead

import (
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/planner"
)

// Defaults of Config.
const (
	DefaultTTL        = 3 * time.Second
	DefaultRenewEvery = time.Second
	DefaultGrace      = 10 * time.Second
)

// Config sets the leases' times. The zero value means the defaults.
type Config struct {
	TTL        time.Duration // a lease lasts this long after a renewal
	RenewEvery time.Duration // what workers are told
	// Grace is the least time every worker has after this node began to lead or
	// came back from a standstill. It covers a worker's longest back-off.
	// It is also how much longer a lease lasts when most of the fleet falls
	// silent at once.
	Grace time.Duration
}

func (c Config) withDefaults() Config {
	if c.TTL <= 0 {
		c.TTL = DefaultTTL
	}
	if c.RenewEvery <= 0 {
		c.RenewEvery = min(DefaultRenewEvery, c.TTL/3)
	}
	if c.Grace <= 0 {
		c.Grace = DefaultGrace
	}
	return c
}

// Verdict is the answer to a renewal.
type Verdict uint8

// The verdicts.
const (
	Held       Verdict = iota // the lease runs on
	Unknown                   // that incarnation is no member: register again
	Superseded                // a later incarnation has the id
	NotYet                    // the epoch is beyond this node's view: ask again
)

// Leases is the leader's lease table. Its size is that of the fleet: only
// members have a lease. It is safe for concurrent use; times given to it must
// come from one clock.
type Leases struct {
	cfg Config

	mu       sync.Mutex
	leases   map[fleet.WorkerID]*lease
	leading  bool
	since    time.Time // of the first Step of this leadership
	lastStep time.Time
	holding  bool // whether the last Step held expiries back
	stale    bool // samples differs from leases

	samples *fleet.Samples
}

type lease struct {
	epoch    fleet.Epoch
	deadline time.Time
	stats    fleet.Stats
	statsAt  time.Time // zero before the first renewal
}

// NewLeases is an empty table.
func NewLeases(cfg Config) *Leases {
	return &Leases{cfg: cfg.withDefaults(), leases: map[fleet.WorkerID]*lease{}}
}

// Config is the configuration in force, defaults filled in.
func (l *Leases) Config() Config { return l.cfg }

// Renew extends the lease of an incarnation that view holds and keeps its
// stats. draining reports whether the worker has been told to drain. While this
// node does not lead, or until the first Step after it began to, nothing is
// kept; that Step grants every member a grace.
func (l *Leases) Renew(now time.Time, view *fleet.View, id fleet.WorkerID, epoch fleet.Epoch, stats fleet.Stats) (v Verdict, draining bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := view.Find(id)
	switch {
	case i >= 0 && view.Workers[i].Epoch == epoch:
	case i >= 0 && view.Workers[i].Epoch > epoch:
		return Superseded, false
	case uint64(epoch) > view.Index && !l.settled(now):
		return NotYet, false
	default:
		return Unknown, false
	}
	if l.leading {
		le := l.touch(id, epoch, now.Add(l.cfg.TTL))
		le.stats, le.statsAt = stats, now
		l.stale = true
	}
	return Held, view.Workers[i].Draining
}

// settled reports whether this node has led for so long that an epoch beyond its
// view cannot be one it has yet to hear of: it was granted by a log that is
// lost, and its worker has to register again.
func (l *Leases) settled(now time.Time) bool {
	return l.leading && now.Sub(l.since) > l.cfg.TTL
}

// Grant starts the lease of an incarnation that has just registered, where this
// node leads.
func (l *Leases) Grant(now time.Time, id fleet.WorkerID, epoch fleet.Epoch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leading {
		l.touch(id, epoch, now.Add(l.cfg.TTL))
	}
}

// touch moves the lease's deadline to at least until. A lease of an older epoch
// is replaced, one of a newer epoch is left alone.
func (l *Leases) touch(id fleet.WorkerID, epoch fleet.Epoch, until time.Time) *lease {
	le := l.leases[id]
	if le == nil || le.epoch < epoch {
		le = &lease{epoch: epoch}
		l.leases[id] = le
		l.stale = true
	}
	if le.epoch > epoch { // a reader behind the table; its word counts for nothing
		return &lease{}
	}
	if until.After(le.deadline) {
		le.deadline = until
	}
	return le
}

// Step compares the table with the fleet and returns the expiries to propose,
// in the order of view. leading says whether this node leads; the others keep
// nothing.
//
// When most of the fleet falls silent at once, the fault is more likely this
// node's network than all those workers'. Their leases then last for the grace
// longer: traffic goes on, since gateways eject by themselves what they cannot
// reach.
func (l *Leases) Step(now time.Time, view *fleet.View, leading bool) []planner.Command {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !leading {
		l.forget()
		return nil
	}
	floor := l.floor(now)
	if !l.leading {
		l.since = now
	}
	l.leading, l.lastStep = true, now
	l.drop(view)
	silent := 0
	for i := range view.Workers {
		w := &view.Workers[i]
		le := l.leases[w.ID]
		if le == nil || le.epoch < w.Epoch {
			le = l.touch(w.ID, w.Epoch, now.Add(l.cfg.TTL))
		}
		if floor.After(le.deadline) {
			le.deadline = floor
		}
		// More than half the TTL without a word is at least one renewal missed:
		// all of a fleet that is cut off are silent before the first expires.
		if le.deadline.Sub(now) < l.cfg.TTL/2 {
			silent++
		}
	}
	l.holding = silent >= massSilence && 2*silent > len(view.Workers)
	if l.holding {
		now = now.Add(-l.cfg.Grace)
	}
	return l.expired(now, view)
}

// massSilence is the least number of silent workers that is taken for a fault
// of the network. Below it, workers that die together are expired promptly.
const massSilence = 4

func (l *Leases) expired(now time.Time, view *fleet.View) []planner.Command {
	var cmds []planner.Command
	for i := range view.Workers {
		w := &view.Workers[i]
		if le := l.leases[w.ID]; le.epoch == w.Epoch && now.After(le.deadline) {
			cmds = append(cmds, planner.ExpireWorker{ID: w.ID, Epoch: w.Epoch})
		}
	}
	return cmds
}

// Holding reports whether expiries are held back because most of the fleet is
// silent.
func (l *Leases) Holding() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holding
}

// floor is the earliest time any lease may end: later than now after this node
// began to lead, or after it did not get to Step for so long that it may have
// missed renewals which are still on their way.
func (l *Leases) floor(now time.Time) time.Time {
	switch {
	case !l.leading:
		return now.Add(max(l.cfg.Grace, l.cfg.TTL))
	case now.Sub(l.lastStep) > l.cfg.TTL/2:
		return now.Add(l.cfg.TTL)
	}
	return time.Time{}
}

func (l *Leases) forget() {
	if !l.leading && len(l.leases) == 0 {
		return
	}
	l.leading, l.holding, l.stale = false, false, true
	clear(l.leases)
}

// drop forgets leases of workers that are gone.
func (l *Leases) drop(view *fleet.View) {
	for id, le := range l.leases {
		// A lease newer than this view belongs to a registration that the view
		// does not show yet.
		if view.Find(id) < 0 && uint64(le.epoch) <= view.Index {
			delete(l.leases, id)
			l.stale = true
		}
	}
}

// Samples is what the workers last said of themselves. It is empty where this
// node does not lead.
func (l *Leases) Samples() *fleet.Samples {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.samples; s != nil && !l.stale {
		return s
	}
	list := make([]fleet.Sample, 0, len(l.leases))
	for id, le := range l.leases {
		if !le.statsAt.IsZero() {
			list = append(list, fleet.Sample{ID: id, Epoch: le.epoch, Stats: le.stats, At: le.statsAt})
		}
	}
	s := fleet.NewSamples(list)
	l.samples = s
	l.stale = false
	return s
}
