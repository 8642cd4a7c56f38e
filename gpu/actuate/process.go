package actuate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/gpu/launch"
)

// Child is a supervised process, as *launch.Child is one: it is started again, after
// pauses that grow, when it ends by itself.
type Child interface {
	// Stop asks it to end and waits; what still runs when ctx ends is killed.
	Stop(ctx context.Context) error
	// Done is closed when it has ended for good; Err then says why, nil after a Stop.
	Done() <-chan struct{}
	Err() error
	Restarts() int
}

// ProcessConfig says what workers are started and how. Serves, Start and Registry are
// required.
type ProcessConfig struct {
	// Serves reports whether workers of this pool can be started here.
	Serves func(scale.Key) bool
	// Start starts a worker of the pool under that id. It does not wait for it.
	Start func(key scale.Key, id fleet.WorkerID) Child
	// Drain takes a worker out of new placements, before it is asked to end; nil leaves
	// that to the worker. A failure is no obstacle: the worker says so itself, later.
	Drain func(ctx context.Context, id fleet.WorkerID, epoch fleet.Epoch) error
	// Prefix begins the workers' ids: prefix, role, a number.
	Prefix string
	// Budget is the most processes, draining ones included; 0 bounds them by the plan
	// alone.
	Budget uint32
	// Starts is how many may be starting at once; 0 means 2.
	Starts int
	// StartTime is how long a worker may take to register for the first time; 0 means
	// 15 min, which loading the largest models takes.
	StartTime time.Duration
	// DrainTime is how long a worker may take to end; 0 means 1 min.
	DrainTime time.Duration
	// FirstPause and LongestPause bound the pause before a pool gets another worker
	// after one that could not start; 0 means 1 s and 1 min.
	FirstPause, LongestPause time.Duration
	Registry                 *measure.Registry
	Logger                   *slog.Logger // nil discards
}

func (c ProcessConfig) withDefaults() ProcessConfig {
	c.Starts = cmp.Or(c.Starts, 2)
	c.StartTime = cmp.Or(c.StartTime, 15*time.Minute)
	c.DrainTime = cmp.Or(c.DrainTime, time.Minute)
	c.FirstPause = cmp.Or(c.FirstPause, time.Second)
	c.LongestPause = cmp.Or(c.LongestPause, time.Minute)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// drainCall bounds how long the fleet is asked not to place on a worker.
const drainCall = 2 * time.Second

// Process starts and drains worker processes on this machine. Make one with
// NewProcess. Step is called by one goroutine at a time; the other methods are safe
// for concurrent use.
type Process struct {
	cfg    ProcessConfig
	tasks  sync.WaitGroup // of drains
	ending context.Context
	force  context.CancelFunc // ends drains that still run

	mu      sync.Mutex
	closed  bool
	workers []*managed // in the order of their starts
	pauses  map[scale.Key]pause
}

// managed is a worker that was started here.
type managed struct {
	id       fleet.WorkerID
	key      scale.Key
	child    Child
	began    time.Time
	seen     bool // it has been registered
	restarts int  // that were counted
	leaving  bool // it was told to end
}

// starting reports whether a worker is on its way for the first time. One that crashed
// meanwhile has pauses of its own, and must not hold up others for as long.
func (w *managed) starting() bool { return !w.leaving && !w.seen && w.restarts == 0 }

// pause is how long a pool gets no worker, because the last could not start.
type pause struct {
	last  time.Duration
	until time.Time
}

// NewProcess is one that has started nothing.
func NewProcess(c ProcessConfig) *Process {
	p := &Process{cfg: c.withDefaults(), pauses: map[scale.Key]pause{}}
	p.ending, p.force = context.WithCancel(context.Background())
	return p
}

// Adopt takes over a worker that was started before.
func (p *Process) Adopt(key scale.Key, id fleet.WorkerID, child Child) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workers = append(p.workers, &managed{id: id, key: key, child: child, seen: true})
}

// Children are the processes that have not ended, draining ones among them.
func (p *Process) Children() []Child {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Child
	for _, w := range p.workers {
		if !w.ended() {
			out = append(out, w.child)
		}
	}
	return out
}

func (w *managed) ended() bool {
	select {
	case <-w.child.Done():
		return true
	default:
		return false
	}
}

// Step drains what is too much, and starts what is missing as far as the budget has
// room now.
func (p *Process) Step(now time.Time, plan *scale.Plan, view *fleet.View) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reap(now, view)
	if plan != nil && !p.closed {
		s := p.survey(plan, view)
		for i := range plan.Pools {
			p.shrink(s, &plan.Pools[i])
		}
		for i := range plan.Pools {
			p.grow(now, s, &plan.Pools[i])
		}
	}
	p.show(view)
}

// reap forgets workers that have ended for good, and sends away those that do not come
// up. The pool of either pauses: the next would fare likewise.
func (p *Process) reap(now time.Time, view *fleet.View) {
	p.workers = slices.DeleteFunc(p.workers, func(w *managed) bool {
		if n := w.child.Restarts(); n > w.restarts {
			p.count("restarted", n-w.restarts)
			w.restarts = n
		}
		if view.Find(w.id) >= 0 && !w.seen && !w.leaving {
			w.seen = true
			delete(p.pauses, w.key)
		}
		if !w.ended() {
			if !w.leaving && !w.seen && now.Sub(w.began) > p.cfg.StartTime {
				p.giveUp(now, w, errLate)
				p.dismiss(w, view, "it has not come up")
			}
			return false
		}
		if err := w.child.Err(); err != nil && !w.leaving {
			p.giveUp(now, w, err)
		}
		return true
	})
}

var errLate = errors.New("it did not register in time")

// giveUp has a worker's pool wait before it gets another.
func (p *Process) giveUp(now time.Time, w *managed, err error) {
	next := pause{last: min(max(2*p.pauses[w.key].last, p.cfg.FirstPause), p.cfg.LongestPause)}
	next.until = now.Add(next.last)
	p.pauses[w.key] = next
	p.count("gave_up", 1)
	p.cfg.Logger.Error("a worker cannot start; its pool waits before the next", "worker", w.id, "pool", w.key.String(), "pause", next.last, "error", err)
}

func (p *Process) count(event string, n int) {
	p.cfg.Registry.Counter(measure.ScaleStarts, event).Add(float64(n))
}

// survey is how things stand, as far as growth and shrinking need it.
type survey struct {
	view     *fleet.View
	others   map[scale.Key]uint32 // workers that are not from here and do not drain
	foreign  int                  // all that are not from here
	own      map[scale.Key]int    // from here, and not leaving
	starting int
	budget   int // of the whole fleet
}

func (p *Process) survey(plan *scale.Plan, view *fleet.View) *survey {
	s := &survey{view: view, others: map[scale.Key]uint32{}, own: map[scale.Key]int{}, budget: int(plan.Budget)}
	if plan.Budget == 0 {
		s.budget = scale.MaxReplicas
	}
	mine := map[fleet.WorkerID]bool{}
	for _, w := range p.workers {
		mine[w.id] = true
		if w.leaving {
			continue
		}
		s.own[w.key]++
		if w.starting() {
			s.starting++
		}
	}
	for i := range view.Workers {
		w := &view.Workers[i]
		if mine[w.ID] {
			continue
		}
		s.foreign++
		if !w.Draining {
			s.others[scale.KeyOf(w)]++
		}
	}
	return s
}

// missing is how many workers a pool lacks; negative is how many it has too many.
func (s *survey) missing(pool *scale.PoolPlan) int {
	return int(pool.Desired) - int(s.others[pool.Key]) - s.own[pool.Key]
}

// shrink sends away what a pool has too many: first those that have not come up yet,
// then the youngest.
func (p *Process) shrink(s *survey, pool *scale.PoolPlan) {
	for over := -s.missing(pool); over > 0 && s.own[pool.Key] > 0; over-- {
		var last *managed
		for _, w := range p.workers {
			if w.key == pool.Key && !w.leaving && (last == nil || s.view.Find(w.id) < 0 || s.view.Find(last.id) >= 0) {
				last = w
			}
		}
		if last == nil {
			return
		}
		if last.starting() {
			s.starting--
		}
		s.own[pool.Key]--
		p.dismiss(last, s.view, pool.Reason)
	}
}

// dismiss drains a worker and ends it.
func (p *Process) dismiss(w *managed, view *fleet.View, why string) {
	w.leaving = true
	epoch := fleet.Epoch(0)
	if i := view.Find(w.id); i >= 0 {
		epoch = view.Workers[i].Epoch
	}
	p.cfg.Logger.Info("worker drains", "worker", w.id, "pool", w.key.String(), "why", why)
	p.tasks.Go(func() {
		if epoch != 0 && p.cfg.Drain != nil {
			p.announce(w, epoch)
		}
		p.stop(p.ending, w)
	})
}

// announce has gateways place nothing more on a worker.
func (p *Process) announce(w *managed, epoch fleet.Epoch) {
	ctx, cancel := context.WithTimeout(p.ending, drainCall)
	defer cancel()
	if err := p.cfg.Drain(ctx, w.id, epoch); err != nil && p.ending.Err() == nil {
		p.cfg.Logger.Warn("the fleet was not told that a worker drains; it says so itself", "worker", w.id, "error", err)
	}
}

// stop ends a worker within its time.
func (p *Process) stop(ctx context.Context, w *managed) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.DrainTime)
	defer cancel()
	if err := w.child.Stop(ctx); err != nil {
		p.count("killed", 1)
		p.cfg.Logger.Warn("a worker did not drain in time", "worker", w.id, "error", err)
		return
	}
	p.count("stopped", 1)
	p.cfg.Logger.Info("worker ended", "worker", w.id)
}

// grow starts what a pool lacks, within every bound.
func (p *Process) grow(now time.Time, s *survey, pool *scale.PoolPlan) {
	if !p.cfg.Serves(pool.Key) || now.Before(p.pauses[pool.Key].until) {
		return
	}
	for range s.missing(pool) {
		own := len(p.workers) // leaving ones have their places until they are gone
		if s.starting >= p.cfg.Starts || own+s.foreign >= s.budget || p.cfg.Budget > 0 && own >= int(p.cfg.Budget) {
			return
		}
		id := p.free(s.view, pool.Role)
		p.workers = append(p.workers, &managed{id: id, key: pool.Key, child: p.cfg.Start(pool.Key, id), began: now})
		s.starting++
		s.own[pool.Key]++
		p.count("started", 1)
		p.cfg.Logger.Info("worker starts", "worker", id, "pool", pool.String(), "why", pool.Reason)
	}
}

// free is the first name that nobody has: neither a process from here, however it is
// leaving, nor a worker of the fleet.
func (p *Process) free(view *fleet.View, role fleet.Role) fleet.WorkerID {
	for n := 0; ; n++ {
		id := fleet.WorkerID(fmt.Sprintf("%s%s-%d", p.cfg.Prefix, role, n))
		if view.Find(id) < 0 && !slices.ContainsFunc(p.workers, func(w *managed) bool { return w.id == id }) {
			return id
		}
	}
}

// show sets the gauges.
func (p *Process) show(view *fleet.View) {
	var starting, serving, draining int
	for _, w := range p.workers {
		switch {
		case w.leaving:
			draining++
		case view.Find(w.id) < 0:
			starting++
		default:
			serving++
		}
	}
	r := p.cfg.Registry
	r.Gauge(measure.ScaleProcesses, "starting").Set(float64(starting))
	r.Gauge(measure.ScaleProcesses, "serving").Set(float64(serving))
	r.Gauge(measure.ScaleProcesses, "draining").Set(float64(draining))
}

// Close ends all workers and returns when they are gone: what still runs when ctx ends
// is killed. Nothing is started any more.
func (p *Process) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	var faults []error
	var mu sync.Mutex
	for _, w := range p.workers {
		if w.leaving {
			continue
		}
		w.leaving = true
		p.tasks.Go(func() {
			if err := w.child.Stop(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				faults = append(faults, err)
			}
		})
	}
	p.mu.Unlock()
	stop := context.AfterFunc(ctx, p.force) // of those that drain already
	p.tasks.Wait()
	stop()
	p.force()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workers = nil
	p.show(&fleet.View{})
	return errors.Join(faults...)
}

var _ Child = (*launch.Child)(nil)
