package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/raftstore/nemesis/history"
)

// clients use the cluster and note what they are told.
type clients struct {
	yard *yard
	log  history.Log
	ops  [objects]atomic.Uint64 // on each object, for its generation
	acks atomic.Uint64          // operations that succeeded
}

const (
	objects = 4 // that are in use at a time: registers, and as many tenants
	// perObject is how many operations an object sees before another takes its
	// place: the search for an order costs dearly beyond.
	perObject = 60
	callTime  = 3 * time.Second
	limit     = 100
)

// client runs one after the other until ctx ends.
func (c *clients) run(ctx context.Context, number int, rng *rand.Rand) {
	w := &client{clients: c, number: number, rng: rng}
	for ctx.Err() == nil {
		if s := c.yard.any(rng); s != nil {
			w.step(ctx, s)
		}
		pause(ctx, time.Duration(1+rng.IntN(20))*time.Millisecond)
	}
}

type client struct {
	*clients
	number int
	rng    *rand.Rand
	values int               // written
	seen   map[string]uint64 // versions, for swaps
}

// step is one operation, not cut short by the end of the run.
func (c *client) step(ctx context.Context, s *raftstore.Store) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	object := c.rng.IntN(objects)
	generation := c.ops[object].Add(1) / perObject
	name := fmt.Sprintf("%d-%d", object, generation)
	switch n := c.rng.IntN(4); {
	case n == 0:
		c.quota(ctx, s, "t"+name)
	case n == 1 && generation < mostBindings:
		c.register(ctx, s, binding+name)
	default:
		c.register(ctx, s, "r"+name)
	}
}

const (
	// binding is what the names of registers begin with that are bindings of
	// policies: the policy that is bound is the value, the index the version.
	binding = "b"
	// mostBindings is how many each object may become: their number is bounded.
	mostBindings = rollout.MaxBindings / objects
)

// known reports whether an error leaves no doubt that nothing was done.
func known(err error) bool { return err != nil && !errors.Is(err, raftstore.ErrAmbiguous) }

func (c *client) register(ctx context.Context, s *raftstore.Store, key string) {
	op := history.RegisterOp{}
	switch n := c.rng.IntN(20); {
	case n < 7:
		c.read(ctx, s, key)
		return
	case n < 12:
		op.Kind = history.Write
	case n < 19:
		op.Kind, op.Want = history.Swap, c.seen[key]
	default:
		op.Kind = history.Delete
	}
	c.values++
	op.Value = fmt.Sprintf("c%d.%d", c.number, c.values)
	call := c.log.Begin(c.number)
	res, err := s.Propose(ctx, command(key, op))
	if known(err) {
		return
	}
	got := history.RegisterAnswer{Unknown: err != nil, Version: res.Version, Conflict: err == nil && res.Code == planner.Conflict}
	nothing := op.Kind == history.Delete && res.Code == planner.UnknownPolicy // a binding that is not there
	if err == nil && res.Err() != nil && !got.Conflict && !nothing {
		c.yard.t.Errorf("%v of %s: %v", op, key, res.Err())
		return
	}
	c.note(key, got)
	call.Register(key, op, got)
}

func command(key string, op history.RegisterOp) planner.Command {
	if strings.HasPrefix(key, binding) {
		return bind(key, op)
	}
	switch op.Kind {
	case history.Swap:
		return planner.SetRegister{Key: key, Value: []byte(op.Value), IfVersion: &op.Want}
	case history.Delete:
		return planner.DeleteRegister{Key: key}
	case history.Read, history.Write:
	}
	return planner.SetRegister{Key: key, Value: []byte(op.Value)}
}

// bind writes to a binding as to a register.
func bind(model string, op history.RegisterOp) planner.Command {
	c := rollout.Change{Kind: rollout.Router, Model: model, Verb: rollout.VerbPromote, Stage: rollout.NativeStage(op.Value)}
	switch op.Kind {
	case history.Swap:
		c.IfIndex = &op.Want
	case history.Delete:
		c.Verb, c.Stage = rollout.VerbClear, rollout.Stage{}
	case history.Read, history.Write:
	}
	return planner.ChangeBinding{Change: c}
}

// valueOf is what a node's memory has of a register or binding.
func valueOf(s *raftstore.Store, key string) history.RegisterAnswer {
	if strings.HasPrefix(key, binding) {
		b, ok := s.State().Rollout().Binding(rollout.Router, key)
		if !ok {
			return history.RegisterAnswer{}
		}
		return history.RegisterAnswer{Exists: true, Value: b.Active.Parts[0].Policy, Version: b.Index}
	}
	r, ok := s.State().Register(key)
	return history.RegisterAnswer{Exists: ok, Value: string(r.Value), Version: r.Version}
}

func (c *client) note(key string, got history.RegisterAnswer) {
	if got.Unknown {
		return
	}
	c.acks.Add(1)
	if len(c.seen) > 2*objects || c.seen == nil {
		c.seen = map[string]uint64{}
	}
	c.seen[key] = got.Version
}

func (c *client) read(ctx context.Context, s *raftstore.Store, key string) {
	call := c.log.Begin(c.number)
	if _, err := s.Read(ctx, raftstore.Linearizable()); err != nil {
		return
	}
	got := valueOf(s, key)
	c.note(key, got)
	call.Register(key, history.RegisterOp{}, got)
}

// holder is a quota's holder of that number.
func holder(n int) string { return fmt.Sprintf("h%d", n) }

func (c *client) quota(ctx context.Context, s *raftstore.Store, tenant string) {
	op := history.QuotaOp{Holder: c.rng.IntN(history.Holders), Window: c.window(tenant), Tokens: int64(1 + c.rng.IntN(limit/3))}
	var cmd planner.Command
	switch n := c.rng.IntN(20); {
	case n == 0:
		op.Kind, op.Tokens = history.SetLimit, limit
		cmd = planner.SetQuota{Tenant: tenant, Limit: limit}
	case n < 9:
		op.Kind = history.Grant
		cmd = planner.GrantQuota{Tenant: tenant, Holder: holder(op.Holder), Window: op.Window, Tokens: unit.Tokens(op.Tokens)}
	case n < 15:
		op.Kind = history.Return
		cmd = planner.ReturnQuota{Tenant: tenant, Holder: holder(op.Holder), Window: op.Window, Tokens: unit.Tokens(op.Tokens)}
	default:
		c.readQuota(ctx, s, tenant)
		return
	}
	call := c.log.Begin(c.number)
	res, err := s.Propose(ctx, cmd)
	if known(err) {
		return
	}
	got := history.QuotaAnswer{
		Unknown: err != nil, Missing: res.Code == planner.UnknownTenant, Stale: res.Code == planner.StaleWindow, Tokens: int64(res.Granted),
	}
	if err == nil {
		c.acks.Add(1)
	}
	call.Quota(tenant, op, got)
	if got.Missing {
		call := c.log.Begin(c.number)
		_, err := s.Propose(ctx, planner.SetQuota{Tenant: tenant, Limit: limit})
		if !known(err) {
			call.Quota(tenant, history.QuotaOp{Kind: history.SetLimit, Tokens: limit}, history.QuotaAnswer{Unknown: err != nil})
		}
	}
}

// window goes on as the object gets older; now and then somebody is late.
func (c *client) window(string) uint64 {
	return uint64(1 + c.rng.IntN(8)/7)
}

func (c *client) readQuota(ctx context.Context, s *raftstore.Store, tenant string) {
	call := c.log.Begin(c.number)
	if _, err := s.Read(ctx, raftstore.Linearizable()); err != nil {
		return
	}
	call.Quota(tenant, history.QuotaOp{Kind: history.ReadQuota}, quotaOf(s, tenant))
}

func quotaOf(s *raftstore.Store, tenant string) history.QuotaAnswer {
	t, ok := s.State().Quota(tenant)
	if !ok {
		return history.QuotaAnswer{Missing: true}
	}
	got := history.QuotaAnswer{Window: t.Window}
	for i := range got.Grants {
		got.Grants[i] = int64(t.Of(holder(i)))
	}
	return got
}

// readAll reads every object once more on every node: what was acknowledged
// must be there.
func (c *clients) readAll(ctx context.Context, list []*node) {
	for i, n := range list {
		s := n.store.Load()
		call := c.log.Begin(1000 + i)
		if _, err := s.Read(ctx, raftstore.Linearizable()); err != nil {
			c.yard.t.Errorf("%s does not read after all is healed: %v", n.id, err)
			continue
		}
		for _, key := range c.log.Registers() {
			call.Register(key, history.RegisterOp{}, valueOf(s, key))
		}
		for _, tenant := range c.log.Tenants() {
			call.Quota(tenant, history.QuotaOp{Kind: history.ReadQuota}, quotaOf(s, tenant))
		}
	}
}
