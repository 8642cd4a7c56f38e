package assemble

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/gpu/actuate"
	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/server/admin"
)

// scaleOperator is a planner's pools as the admin API sees them.
type scaleOperator struct {
	store   *raftstore.Store
	scaling *scaling
	clock   clock.Clock
}

// scale is the planner's pools, for its admin API.
func (p *Planner) scale(process Process) admin.Scale {
	return scaleOperator{p.store, &p.scaling, process.Clock}
}

// Status implements admin.Scale.
func (o scaleOperator) Status() admin.ScaleStatus {
	c := o.scaling.config
	out := admin.ScaleStatus{Policy: c.Policy, Actuator: c.Actuator, Budget: uint32(c.Budget), Pools: []admin.ScalePool{}}
	if o.scaling.process.Load() != nil {
		out.Actuator = "process"
	}
	plan, index := o.store.State().Plan()
	if plan != nil {
		out.Plan = &admin.ScalePlan{Index: index, Policy: plan.Policy, Budget: plan.Budget, Held: plan.Held(), At: time.UnixMilli(plan.At).UTC()}
	}
	pools := map[scale.Key]*admin.ScalePool{}
	of := func(key scale.Key) *admin.ScalePool {
		if pools[key] == nil {
			limits := c.Limits(key)
			pools[key] = &admin.ScalePool{Model: key.Model, Role: key.Role.String(), Least: limits.Least, Most: limits.Most}
		}
		return pools[key]
	}
	for _, key := range c.Named() {
		of(key)
	}
	if plan != nil {
		for i := range plan.Pools {
			p := of(plan.Pools[i].Key)
			p.Desired, p.Reason = &plan.Pools[i].Desired, plan.Pools[i].Reason
		}
	}
	ready, draining := actuate.Count(o.store.View())
	for key, n := range ready {
		of(key).Ready = n
	}
	for key, n := range draining {
		of(key).Draining = n
	}
	out.Leader = o.look(of, plan.Held())
	for _, key := range slices.SortedFunc(maps.Keys(pools), scale.Key.Compare) {
		out.Pools = append(out.Pools, *pools[key])
	}
	return out
}

// look adds what this node saw last, if it leads.
func (o scaleOperator) look(of func(scale.Key) *admin.ScalePool, held bool) *admin.ScaleTick {
	if o.scaling.scaler == nil {
		return nil
	}
	r := o.scaling.scaler.Report()
	if r == nil {
		return nil
	}
	for i := range r.Pools {
		seen := &r.Pools[i]
		p := of(seen.Key)
		p.Sample = sampleOf(&seen.Now)
		if !seen.Want.Keep {
			p.Wanted = &seen.Want.Replicas
		}
		switch {
		case held && p.Wanted != nil && p.Desired != nil && *p.Wanted != *p.Desired:
			p.Reason = "an operator holds the plan; the policy: " + cmp.Or(seen.Want.Reason, "no reason given")
		case held && p.Reason != "": // why it has the size that is held
		case seen.Want.Reason != "":
			p.Reason = seen.Want.Reason
		}
	}
	return &admin.ScaleTick{At: r.At.UTC(), Policy: r.Policy, Fault: r.Fault}
}

func sampleOf(s *scale.Sample) *admin.ScaleSample {
	known := func(v float64) *float64 {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil
		}
		return &v
	}
	return &admin.ScaleSample{
		Arrivals: known(s.Arrivals), PromptTokens: known(s.PromptTokens), OutputTokens: known(s.OutputTokens), HitRatio: known(s.HitRatio),
		Queued: known(s.Queued), Running: known(s.Running), Waiting: known(s.Waiting), KVUsage: known(s.KVUsage),
		TTFTP95: known(s.FirstP95), ITLP95: known(s.BetweenP95), PrefillRate: known(s.PrefillRate), DecodeRate: known(s.DecodeRate),
	}
}

// Change implements admin.Scale.
func (o scaleOperator) Change(ctx context.Context, c admin.ScaleChange) error {
	if !o.scaling.config.On() {
		return fmt.Errorf("%w: scale.policy is off on this planner, so nobody follows a plan", admin.ErrInvalid)
	}
	if _, err := o.store.Read(ctx, raftstore.Linearizable()); err != nil {
		return tell(err)
	}
	plan, index := o.store.State().Plan()
	next, err := o.changed(plan, c)
	if err != nil {
		return err
	}
	res, err := o.store.Propose(ctx, planner.SetScalePlan{Plan: *next, IfIndex: &index})
	switch {
	case err != nil:
		return tell(err)
	case res.Code == planner.Conflict:
		return admin.ErrScaleConflict
	case res.Err() != nil:
		return tell(res.Err())
	}
	if _, err := o.store.Read(ctx, raftstore.Stale(0, res.Index)); err != nil {
		return tell(err)
	}
	return nil
}

// changed is the plan that a change makes of the one in force. Without one it begins
// with the fleet as it is. Pools that are over are not in it.
func (o scaleOperator) changed(plan *scale.Plan, c admin.ScaleChange) (*scale.Plan, error) {
	next := &scale.Plan{Budget: uint32(o.scaling.config.Budget)}
	ready, draining := actuate.Count(o.store.View())
	if plan != nil {
		next.Budget, next.Pools = plan.Budget, slices.Clone(plan.Pools)
	} else {
		for _, key := range slices.SortedFunc(maps.Keys(ready), scale.Key.Compare) {
			next.Pools = append(next.Pools, scale.PoolPlan{Key: key, Desired: ready[key]})
		}
	}
	next.Policy, next.At = scale.ByHand, o.clock.Now().UnixMilli()
	switch c.Verb {
	case "release":
		next.Policy = scale.Released
	case "set":
		key, err := o.pool(next, c, ready, draining)
		if err != nil {
			return nil, err
		}
		next.Pools = slices.DeleteFunc(next.Pools, func(p scale.PoolPlan) bool { return p.Key == key })
		at, _ := slices.BinarySearchFunc(next.Pools, key, func(p scale.PoolPlan, k scale.Key) int { return p.Compare(k) })
		next.Pools = slices.Insert(next.Pools, at, scale.PoolPlan{Key: key, Desired: *c.Desired, Reason: "set by an operator"})
	}
	named := o.scaling.config.Named()
	next.Pools = slices.DeleteFunc(next.Pools, func(p scale.PoolPlan) bool {
		return p.Desired == 0 && ready[p.Key]+draining[p.Key] == 0 && !slices.Contains(named, p.Key) && o.scaling.config.Limits(p.Key).Least > 0
	})
	if err := next.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", admin.ErrInvalid, err)
	}
	return next, nil
}

// pool is the pool that a change is about. There must be such a one: of a name that was
// mistyped a plan would have a pool in which nobody ever serves.
func (o scaleOperator) pool(plan *scale.Plan, c admin.ScaleChange, fleets ...map[scale.Key]uint32) (scale.Key, error) {
	role, err := fleet.ParseRole(c.Role)
	if err != nil {
		return scale.Key{}, fmt.Errorf("%w: %w", admin.ErrInvalid, err)
	}
	key := scale.Key{Model: c.Model, Role: role}
	known := o.scaling.config.Named()
	for _, p := range plan.Pools {
		known = append(known, p.Key)
	}
	for _, workers := range fleets {
		known = slices.AppendSeq(known, maps.Keys(workers))
	}
	if !slices.Contains(known, key) {
		return key, fmt.Errorf("%w: there is no pool %s: it has no workers, and scale.pool does not name it; %s", admin.ErrInvalid, key, instead(key, known))
	}
	if limits := o.scaling.config.Limits(key); limits.Most > 0 && *c.Desired > limits.Most {
		return key, fmt.Errorf("%w: scale.pool allows %s at most %d workers", admin.ErrInvalid, key, limits.Most)
	}
	return key, nil
}

// namedPools bounds how many pools a refusal lists.
const namedPools = 8

// instead says which pools there are, for one who named another.
func instead(key scale.Key, known []scale.Key) string {
	slices.SortFunc(known, scale.Key.Compare)
	known = slices.Compact(known)
	if len(known) == 0 {
		return "there are none yet"
	}
	names := make([]string, 0, len(known))
	for _, k := range known {
		names = append(names, k.String())
	}
	text := "there are " + strings.Join(names[:min(len(names), namedPools)], ", ")
	if more := len(names) - namedPools; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	if near := config.Nearest(key.String(), names); near != "" {
		return fmt.Sprintf("did you mean %s? %s", near, text)
	}
	return text
}
