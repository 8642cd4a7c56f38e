package lead

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/core/traffic"
)

// DefaultScaleEvery is how often pools are looked at.
const DefaultScaleEvery = 5 * time.Second

// windowSpan is how much of the past a policy sees, in samples between the two: policies
// that take the mean of it should still follow.
const (
	windowSpan    = time.Minute
	leastSamples  = 8
	mostSamples   = 24
	policyName    = 256 // bytes of a policy's name in a plan
	defaultFewest = 1
)

// ScaleConfig says how pools are sized. Zero fields take their defaults.
type ScaleConfig struct {
	Every time.Duration // between ticks; 0 means DefaultScaleEvery
	// Limits is what is allowed of a pool; nil allows at least one replica of each.
	Limits func(scale.Key) scale.Limits
	// Pools are there though nobody serves in them.
	Pools   []scale.Key
	Limiter scale.LimiterConfig
}

func (c ScaleConfig) withDefaults() ScaleConfig {
	if c.Every <= 0 {
		c.Every = DefaultScaleEvery
	}
	if c.Limits == nil {
		c.Limits = func(scale.Key) scale.Limits { return scale.Limits{Least: defaultFewest} }
	}
	return c
}

// PlanKeeper is the replicated state as sizing pools needs it.
type PlanKeeper interface {
	Planner
	// Plan is the plan in force and its index; nil and 0 where there is none.
	Plan() (*scale.Plan, uint64)
}

// ScaleDuties are the parts that a Scaler joins. All but Logger are required; Logger
// may be nil.
type ScaleDuties struct {
	Planner PlanKeeper
	// Policy makes a policy that has seen nothing, for one leadership. Its Tick is
	// called by one goroutine at a time, whichever leadership it is of.
	Policy   func() scale.Policy
	Samples  func() *fleet.Samples // what workers last said
	Traffic  *traffic.Book         // what gateways last said
	Clock    clock.Clock
	Registry *measure.Registry
	Logger   *slog.Logger
}

// Scaler sizes pools while its node leads. Make one with NewScaler.
type Scaler struct {
	cfg    ScaleConfig
	duties ScaleDuties
	report atomic.Pointer[ScaleReport]

	plans, ticks func(outcome string) // of metrics
	complaint    complaint

	term *term // nil while the node does not lead
	// pending delivers when a policy that was given up on has returned; nil when none
	// is at work.
	pending chan struct{}
}

// term is what belongs to one leadership.
type term struct {
	policy  scale.Policy
	limiter *scale.Limiter
	history *scale.History
	sampler *sampler
}

// ScaleReport is what the last tick saw and came to. It is immutable.
type ScaleReport struct {
	At     time.Time
	Policy string
	Every  time.Duration
	Budget uint32 // 0: none but the bounds of pools
	Pools  []PoolReport
	Fault  string // why the plan could not be changed, or was not asked for; empty when it went well
}

// PoolReport is one pool's part of it.
type PoolReport struct {
	scale.Key
	scale.Limits
	Now  scale.Sample
	Want scale.Want
}

// NewScaler is a scaler that does not run yet.
func NewScaler(c ScaleConfig, d ScaleDuties) *Scaler {
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	return &Scaler{
		cfg: c.withDefaults(), duties: d,
		plans: func(outcome string) { d.Registry.Counter(measure.ScalePlans, outcome).Inc() },
		ticks: func(outcome string) { d.Registry.Counter(measure.ScaleTicks, outcome).Inc() },
	}
}

// Report is the last tick's; nil where this node does not lead, or has not led for
// two ticks yet.
func (s *Scaler) Report() *ScaleReport { return s.report.Load() }

// Run sizes pools until ctx ends, and then waits for the policy to return. On a node
// that does not lead it only waits, so every planner runs it.
func (s *Scaler) Run(ctx context.Context) {
	timer := s.duties.Clock.NewTimer(s.cfg.Every)
	defer timer.Stop()
	defer func() {
		if s.pending != nil {
			<-s.pending
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
		}
		timer.Reset(s.cfg.Every)
		if !s.duties.Planner.Leading() {
			s.term = nil
			s.report.Store(nil)
			continue
		}
		if s.term == nil {
			s.begin()
			continue
		}
		s.tick(ctx)
	}
}

// begin is the first look of a leadership: rates are known from the second on.
func (s *Scaler) begin() {
	length := min(max(int(windowSpan/s.cfg.Every), leastSamples), mostSamples)
	s.term = &term{
		policy: s.duties.Policy(), limiter: scale.NewLimiter(s.cfg.Limiter), history: scale.NewHistory(length), sampler: newSampler(),
	}
	s.look()
}

// look takes a sample of all pools, and returns the plan in force with it.
func (s *Scaler) look() (*scale.Plan, uint64) {
	plan, index := s.duties.Planner.Plan()
	s.term.history.Add(s.term.sampler.sample(&scene{
		view: s.duties.Planner.View(), said: s.duties.Samples(), plan: plan, traffic: s.duties.Traffic, wanted: s.cfg.Pools,
		sleeps: func(key scale.Key) bool { return s.cfg.Limits(key).Least == 0 },
	}))
	return plan, index
}

// tick looks, asks, limits and proposes.
func (s *Scaler) tick(ctx context.Context) {
	plan, index := s.look()
	w := s.window()
	want := make([]scale.Want, len(w.Pools))
	if !s.ask(ctx, w, want) {
		s.ticks("late")
		s.tell(w, nil, "the policy has not answered in time; the plan stays")
		return
	}
	s.ticks("asked")
	if plan.Held() {
		s.tell(w, want, "") // an operator's will is no fault: the plan says who holds it
		return
	}
	next := s.term.limiter.Step(w, want, plan, cut(s.term.policy.Name(), policyName))
	if len(next.Pools) == 0 && plan == nil || next.Same(plan) {
		s.tell(w, want, "")
		return
	}
	err := s.propose(ctx, next, index)
	fault := ""
	if err != nil {
		fault = err.Error()
	}
	s.tell(w, want, fault)
	if s.complaint.fresh(err) {
		s.duties.Logger.Warn("the plan of pools could not be changed; trying again", "error", err)
	}
}

// window is what the policy sees.
func (s *Scaler) window() *scale.Window {
	keys := s.term.history.Keys()
	w := &scale.Window{
		Now: s.duties.Clock.Now(), Interval: s.cfg.Every, Budget: s.cfg.Limiter.Budget,
		Seed: rand.Uint64(), //nolint:gosec // nothing secret
	}
	for _, key := range keys {
		w.Pools = append(w.Pools, scale.Pool{Key: key, Limits: s.cfg.Limits(key), Samples: s.term.history.Of(key)})
	}
	return w
}

// ask has the policy tick, and reports whether it did so before the next tick is due.
// One that did not is not asked again before it has returned.
func (s *Scaler) ask(ctx context.Context, w *scale.Window, want []scale.Want) bool {
	if s.pending != nil {
		select {
		case <-s.pending:
			s.pending = nil
		default:
			return false
		}
	}
	done, policy := make(chan struct{}), s.term.policy
	answer := make([]scale.Want, len(want))
	go func() {
		defer close(done)
		policy.Tick(w, answer)
	}()
	timer := s.duties.Clock.NewTimer(s.cfg.Every)
	defer timer.Stop()
	select {
	case <-done:
		copy(want, answer)
		return true
	case <-timer.C():
	case <-ctx.Done():
	}
	s.pending = done
	return false
}

var errNotTaken = errors.New("the cluster did not take it")

// propose brings a plan into force, unless another came meanwhile.
func (s *Scaler) propose(ctx context.Context, next *scale.Plan, index uint64) error {
	if !s.duties.Planner.Leading() {
		return nil // the new leader has a policy of its own
	}
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	res, err := s.duties.Planner.Propose(ctx, planner.SetScalePlan{Plan: *next, IfIndex: &index})
	switch {
	case err != nil:
		s.plans("failed")
		return err
	case res.Code == planner.Conflict:
		s.plans("conflict")
		return fmt.Errorf("%w: another plan came meanwhile", errNotTaken)
	case res.Err() != nil:
		s.plans("refused")
		return fmt.Errorf("%w: %w", errNotTaken, res.Err())
	}
	s.plans("committed")
	return nil
}

// tell publishes what the tick saw.
func (s *Scaler) tell(w *scale.Window, want []scale.Want, fault string) {
	r := &ScaleReport{At: w.Now, Policy: s.term.policy.Name(), Every: s.cfg.Every, Budget: s.cfg.Limiter.Budget, Fault: fault}
	for i := range w.Pools {
		one := PoolReport{Key: w.Pools[i].Key, Limits: w.Pools[i].Limits, Now: *w.Pools[i].Now()}
		if want != nil {
			one.Want = want[i]
		} else {
			one.Want.Keep = true
		}
		r.Pools = append(r.Pools, one)
	}
	s.report.Store(r)
}

func cut(s string, n int) string { return s[:min(len(s), n)] }
