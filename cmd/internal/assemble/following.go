package assemble

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster/yardmaster/core/lead"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/raftstore"
)

const (
	// Pauses before a store that has stopped for good is replaced.
	firstReplacement   = time.Second
	longestReplacement = time.Minute
	// followEvery is how often the live store is looked at.
	followEvery = 50 * time.Millisecond
	// strandedFor is how long nobody of a gateway's own cluster may answer, and those
	// of another do, before the gateway goes over.
	strandedFor = 10 * time.Second
	// gatherTime is how long the workers of a cluster that was founded anew have to
	// register with it before its view counts without some of them.
	gatherTime = 20 * time.Second
)

// errFoundedAnew means that the planners which answer are of another cluster than
// the one that this gateway has followed, of which nobody answers.
var errFoundedAnew = errors.New("the planners that answer are of another cluster than before")

// keep keeps the gateway a member until ctx ends. When its store stops, or only
// planners of another cluster are left, the store is replaced by a new one, and
// the view of the old serves until the new one can take over: requests must not
// notice.
func (r *replica) keep(ctx context.Context) {
	r.show(r.seen.Load()) //nolint:contextcheck // hide ends it
	defer func() { r.hide() }()
	for pause := firstReplacement; ; pause = min(2*pause, longestReplacement) {
		began := time.Now()
		err := r.follow(ctx)
		if err == nil {
			return
		}
		if errors.Is(err, raftstore.ErrIDInUse) || errors.Is(err, raftstore.ErrOtherCluster) && !errors.Is(err, errFoundedAnew) {
			r.log.Error("this gateway no longer follows the planners; it goes on with what it knows: start it again, rightly, when it suits", "error", err)
			return
		}
		if time.Since(began) > longestReplacement {
			pause = firstReplacement // it went well for a while
		}
		r.log.Warn("this gateway's copy has stopped; it goes on with what it knows and fetches a new one", "in", pause, "error", err)
		if !r.renew(ctx, pause) {
			return
		}
	}
}

// renew replaces the live store, after a pause. It reports whether it did before
// ctx ended.
func (r *replica) renew(ctx context.Context, pause time.Duration) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
		err := r.replace(ctx)
		if err == nil {
			return true
		}
		pause = longestReplacement
		r.log.Error("no new copy yet; trying again", "in", pause, "error", err)
	}
}

// follow makes the live store's view the one that counts once it can be, and
// returns why the store is to be replaced, or nil with ctx.
func (r *replica) follow(ctx context.Context) error {
	store := r.node.store()
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	var complete time.Time // when the store had caught up
	arrived := false
	for {
		if !arrived && store.Ready() == nil {
			if complete.IsZero() {
				complete = time.Now()
			}
			if arrived = r.worthy(store, complete); arrived {
				r.take(store) //nolint:contextcheck // hide ends what it shows
			}
		}
		if since, why := store.Stranded(); why != nil && (time.Since(since) > r.patience || errors.Is(why, raftstore.ErrRecovered)) {
			return fmt.Errorf("%w: %w", errFoundedAnew, why)
		}
		select {
		case <-store.Faulted():
			return store.Fault()
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// worthy reports whether a store that has caught up, at complete, is to take over.
// One of the same cluster is at once. A cluster that was founded anew is waited for
// to know the workers that are there: until they have registered, the view of
// before serves better.
func (r *replica) worthy(store *raftstore.Store, complete time.Time) bool {
	seen := r.seen.Load()
	if seen == store || seen.ClusterID() == store.ClusterID() {
		return true
	}
	now, before := len(store.View().Workers), len(seen.View().Workers)
	return now >= before || now > 0 && time.Since(complete) > gatherTime
}

// take makes a store's view the one that counts.
func (r *replica) take(store *raftstore.Store) {
	before := r.seen.Swap(store)
	if before != store {
		r.log.Info("a new copy has taken over", "cluster", store.ClusterID(), "before", before.ClusterID())
		r.show(store)
		if table := r.table.Load(); table != nil && before.ClusterID() != store.ClusterID() {
			table.Restart()
		}
	}
	r.log.Info("the planners' view is here", "workers", len(store.View().Workers))
}

// show keeps the gauges of a store's prefix index, instead of those of another.
func (r *replica) show(store *raftstore.Store) {
	r.hide()
	r.hidden = background(func(ctx context.Context) {
		lead.RunPrefix(ctx, lead.PrefixDuties{
			State: store.Prefix(), View: store.View, Leading: func() bool { return false },
			Propose: func(context.Context, *prefix.Frame) (prefix.Outcome, error) { return 0, raftstore.ErrNotLeader },
			Clock:   r.process.Clock, Registry: r.process.Registry, Logger: r.log,
		})
	})
}

// hide ends what show began.
func (r *replica) hide() {
	if r.hidden != nil {
		r.hidden()
		r.hidden = nil
	}
}

// replace closes the live store and opens another in its place.
func (r *replica) replace(ctx context.Context) error {
	end, cancel := context.WithTimeout(ctx, leaveTime)
	defer cancel()
	if err := r.node.store().Close(end); err != nil {
		r.log.Warn("the old copy did not end cleanly", "error", err)
	}
	store, err := raftstore.Open(ctx, r.node.config)
	if err != nil {
		return err
	}
	r.node.live.Store(store)
	return nil
}

// news is what is to be said of a view that can be relied on and is not the
// planners' latest; empty when it is.
func (r *replica) news() string {
	live, seen := r.node.store(), r.seen.Load()
	if since, why := live.Stranded(); why != nil {
		return fmt.Sprintf("for %v only planners of another cluster answer (%s); what was known before serves", time.Since(since).Round(time.Second), stranger(why))
	}
	if live == seen {
		return ""
	}
	if err := live.Ready(); err != nil {
		return "what was known before serves; a new copy is being fetched: " + Plain(err.Error())
	}
	return "what was known before serves until the workers have registered with the planners that were founded anew"
}
