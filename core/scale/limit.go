package scale

import (
	"fmt"
	"slices"
	"time"
)

// LimiterConfig bounds how plans change. Zero fields take their defaults.
type LimiterConfig struct {
	Budget uint32 // the most replicas of all pools together; 0 means MaxReplicas
	// Grow and Shrink are the most replicas that a tick adds to or takes from a pool;
	// 0 means that growth doubles at most, and at least adds 2, and that 1 goes.
	Grow, Shrink uint32
	// Hold is how long a pool must have wanted fewer before it shrinks; 0 means
	// 2 min, negative none. A new leader has seen nothing yet, so it holds anew.
	Hold time.Duration
}

// Limiter makes plans of what a policy wants. It belongs to one goroutine.
type Limiter struct {
	cfg LimiterConfig
	// low is since when each pool has wanted fewer, and the most it wanted in that
	// time.
	low map[Key]low
}

type low struct {
	since time.Time
	most  uint32
}

// NewLimiter makes a limiter that has seen nothing.
func NewLimiter(c LimiterConfig) *Limiter {
	if c.Hold == 0 {
		c.Hold = 2 * time.Minute
	}
	if c.Budget == 0 || c.Budget > MaxReplicas {
		c.Budget = MaxReplicas
	}
	return &Limiter{cfg: c, low: map[Key]low{}}
}

// Step makes the next plan, from the one in force, which may be nil, what the policy
// wants, and what runs now according to the window's newest samples.
//
// Room for growth is the budget less what runs: a replica that drains takes its
// place until it is gone. So the plan never asks for more than the budget, and the
// fleet does not exceed it while it changes either: pools shrink first and others
// grow, a tick or more later, by what has become free. A pool below its fewest comes
// before one that merely wants more. Where the budget does not hold all the fewest,
// the first pools by key get theirs.
func (l *Limiter) Step(w *Window, want []Want, current *Plan, policy string) *Plan {
	budget := l.cfg.Budget
	if w.Budget > 0 {
		budget = min(budget, w.Budget)
	}
	next := &Plan{Budget: budget, Policy: policy, At: w.Now.UnixMilli(), Pools: make([]PoolPlan, len(w.Pools))}
	targets := make([]uint32, len(w.Pools))
	var room tally
	for i := range w.Pools {
		pool := &w.Pools[i]
		now := present(pool, current)
		target, reason := l.target(w.Now, pool, want[i], now)
		targets[i] = target
		next.Pools[i] = PoolPlan{Key: pool.Key, Desired: min(now, target), Reason: reason}
		room.planned += uint64(next.Pools[i].Desired)
		room.held += uint64(max(next.Pools[i].Desired, active(pool))) + uint64(draining(pool))
	}
	l.forget(w)
	l.cut(next, w, &room, budget)
	for _, fewest := range []bool{true, false} {
		for i := range w.Pools {
			goal := targets[i]
			if fewest {
				goal = min(goal, w.Pools[i].Least)
			}
			l.grow(&next.Pools[i], &w.Pools[i], goal, &room, budget)
		}
	}
	return next
}

// tally is the sums over all pools that the budget bounds.
type tally struct {
	planned uint64 // replicas of the plan
	held    uint64 // those, and the others that are still there
}

// cut shrinks pools, the largest first, until what is planned is within the budget:
// a smaller one was set.
func (l *Limiter) cut(next *Plan, w *Window, room *tally, budget uint32) {
	for room.planned > uint64(budget) {
		at := 0
		for i := range next.Pools {
			if spare(next.Pools[i].Desired, w.Pools[i].Least) > spare(next.Pools[at].Desired, w.Pools[at].Least) {
				at = i
			}
		}
		pool := &next.Pools[at]
		before := max(pool.Desired, active(&w.Pools[at]))
		pool.Desired--
		pool.Reason = fmt.Sprintf("the budget is %d", budget)
		room.held -= uint64(before - max(pool.Desired, active(&w.Pools[at])))
		room.planned--
	}
}

// spare orders pools for cut: those above their fewest by how much, then the others
// by size.
func spare(desired, least uint32) int64 {
	if desired > least {
		return int64(desired-least) + MaxReplicas
	}
	return int64(desired)
}

// grow raises a pool towards goal as far as the budget allows.
func (l *Limiter) grow(p *PoolPlan, pool *Pool, goal uint32, room *tally, budget uint32) {
	for p.Desired < goal {
		another := p.Desired >= active(pool) // one that is not there yet
		if room.planned >= uint64(budget) || another && room.held >= uint64(budget) {
			p.Reason = fmt.Sprintf("the budget of %d is used up; %s", budget, p.Reason)
			p.Reason = p.Reason[:min(len(p.Reason), maxText)]
			return
		}
		if another {
			room.held++
		}
		room.planned++
		p.Desired++
	}
}

// present is how many replicas a pool is to have now: the plan's number, or what is
// there when it is in no plan yet.
func present(pool *Pool, current *Plan) uint32 {
	if p, ok := current.Find(pool.Key); ok {
		return p.Desired
	}
	return active(pool)
}

// active is the replicas that serve or are about to.
func active(pool *Pool) uint32 { return whole(or(pool.Now().Ready, 0) + or(pool.Now().Pending, 0)) }

// draining is those that are about to go.
func draining(pool *Pool) uint32 { return whole(or(pool.Now().Draining, 0)) }

// target is what a pool should have by its own limits, and why.
func (l *Limiter) target(now time.Time, pool *Pool, want Want, present uint32) (uint32, string) {
	most := pool.Most
	if most == 0 {
		most = l.cfg.Budget
	}
	wanted := want.Replicas
	if want.Keep {
		wanted = present
	}
	clamped := min(max(wanted, pool.Least), most)
	reason := want.Reason[:min(len(want.Reason), maxText)]
	switch {
	case clamped > present:
		delete(l.low, pool.Key)
		step := l.cfg.Grow
		if step == 0 {
			step = max(present, 2)
		}
		return max(min(clamped, present+step), min(pool.Least, most)), reason
	case clamped < present && present > most:
		return most, fmt.Sprintf("at most %d are configured", most)
	case clamped < present:
		return l.shrink(now, pool, clamped, present), reason
	default:
		delete(l.low, pool.Key)
		return present, reason
	}
}

// shrink is the size of a pool that wants to be smaller: as before until it has
// wanted so for the whole hold, and then the most that it wanted meanwhile.
func (l *Limiter) shrink(now time.Time, pool *Pool, wanted, present uint32) uint32 {
	since, seen := l.low[pool.Key]
	if !seen {
		since = low{since: now}
	}
	since.most = max(since.most, wanted)
	l.low[pool.Key] = since
	if l.cfg.Hold > 0 && now.Sub(since.since) < l.cfg.Hold {
		return present
	}
	step := max(l.cfg.Shrink, 1)
	delete(l.low, pool.Key)
	if present-since.most <= step {
		return since.most
	}
	l.low[pool.Key] = low{since: since.since, most: wanted} // more is to go with the next tick
	return present - step
}

// forget drops pools that are gone.
func (l *Limiter) forget(w *Window) {
	for key := range l.low {
		if _, still := slices.BinarySearchFunc(w.Pools, key, func(p Pool, k Key) int { return p.Compare(k) }); !still {
			delete(l.low, key)
		}
	}
}
