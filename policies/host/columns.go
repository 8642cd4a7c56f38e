package host

import (
	"maps"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/policies/abi"
)

// source is where a column of routers comes from.
type source struct {
	needs route.Needs
	fill  fill
}

// fill writes one column for all candidates. It says whether it had anything to write;
// where routing collects nothing for the column now, it leaves it alone.
type fill func(in *Instance, column int, c *route.Columns) bool

// routerColumns are what fills the columns of routers.
func routerColumns() map[string]source {
	all := always()
	maps.Copy(all, onDemand())
	return all
}

// always are the columns that routing fills for everybody.
func always() map[string]source {
	return map[string]source{
		"key_low":         {fill: keys(low)},
		"key_high":        {fill: keys(high)},
		"in_flight":       {fill: numbers(func(c *route.Columns) []float64 { return c.InFlight })},
		"requests":        {fill: numbers(func(c *route.Columns) []float64 { return c.Requests })},
		"queued_tokens":   {fill: numbers(func(c *route.Columns) []float64 { return c.Queued })},
		"hit_tokens":      {fill: numbers(func(c *route.Columns) []float64 { return c.Hit })},
		"capacity_blocks": {fill: numbers(func(c *route.Columns) []float64 { return c.Capacity })},
		"running":         {fill: numbers(func(c *route.Columns) []float64 { return c.Running })},
		"waiting":         {fill: numbers(func(c *route.Columns) []float64 { return c.Waiting })},
		"prefill_rate":    {fill: numbers(func(c *route.Columns) []float64 { return c.Rate })},
		"share":           {fill: numbers(func(c *route.Columns) []float64 { return c.Share })},
		"prefill_seconds_per_token": {fill: func(in *Instance, at int, c *route.Columns) bool {
			invert(in.F32(at), c.Rate)
			return true
		}},
	}
}

// onDemand are the columns that routing fills for those who need them.
func onDemand() map[string]source {
	return map[string]source{
		"siblings":       {route.NeedsSiblings, numbers(func(c *route.Columns) []float64 { return c.Siblings })},
		"active_blocks":  {route.NeedsActive, numbers(func(c *route.Columns) []float64 { return c.Active })},
		"step_ms":        {route.NeedsStep, scaled(1000, func(c *route.Columns) []float64 { return c.Step })},
		"age_ms":         {route.NeedsAge, scaled(1000, func(c *route.Columns) []float64 { return c.Age })},
		"kv_token_bytes": {route.NeedsTransfer, numbers(func(c *route.Columns) []float64 { return c.TokenBytes })},
		"group":          {route.NeedsTransfer, groups},
		"adapters":       {route.NeedsAdapters, numbers(func(c *route.Columns) []float64 { return c.Adapters })},
		"adapter_slots":  {route.NeedsAdapters, numbers(func(c *route.Columns) []float64 { return c.AdapterSlots })},
		"adapter_idle_s": {route.NeedsAdapters, numbers(func(c *route.Columns) []float64 { return c.Lately })},
		"lora":           {route.NeedsAdapters, adapterLoaded},
		"missed_tokens":  {route.NeedsWindow, numbers(func(c *route.Columns) []float64 { return c.Missed })},
		"found_tokens":   {route.NeedsWindow, numbers(func(c *route.Columns) []float64 { return c.Found })},
		"role":           {route.NeedsPlace, roles},
		"zone":           {route.NeedsPlace, zones},
	}
}

// numbers fills a column from one of the router's.
func numbers(of func(c *route.Columns) []float64) fill {
	return func(in *Instance, at int, c *route.Columns) bool {
		from := of(c)
		narrow(in.F32(at), from)
		return from != nil
	}
}

// scaled is numbers in another unit.
func scaled(by float64, of func(c *route.Columns) []float64) fill {
	return func(in *Instance, at int, c *route.Columns) bool {
		from := of(c)
		to := in.F32(at)[:len(from)]
		for i, v := range from {
			to[i] = float32(by * v)
		}
		return from != nil
	}
}

func keys(half func(to []uint32, from []uint64)) fill {
	return func(in *Instance, at int, c *route.Columns) bool {
		half(in.U32(at), c.Key)
		return true
	}
}

// groups fills the group of each, which is none where nobody computes for others.
func groups(in *Instance, at int, c *route.Columns) bool {
	to := in.U32(at)[:len(c.Worker)]
	if c.Group == nil {
		clear(to)
	} else {
		copy(to, c.Group)
	}
	return true
}

// roles are numbered in ym/1 otherwise than in package fleet.
func roles(in *Instance, at int, c *route.Columns) bool {
	to := in.U32(at)[:len(c.Role)]
	for i, r := range c.Role {
		to[i] = [...]uint32{abi.UnknownU32, fleet.RolePrefill: 1, fleet.RoleDecode: 2, fleet.RoleBoth: 0}[r&3]
	}
	return c.Role != nil
}

func zones(in *Instance, at int, c *route.Columns) bool {
	to := in.U32(at)[:len(c.Zone)]
	for i, z := range c.Zone {
		if z == 0 {
			z = abi.UnknownU32
		}
		to[i] = z
	}
	return c.Zone != nil
}

// loadedFor is how long an adapter that nobody asks for is taken to stay loaded, in
// seconds, as in route.LoRA.
const loadedFor = 300

// adapterLoaded says whether a worker has the request's adapter loaded: no worker
// tells, so that what this gateway asked it for lately stands for that.
func adapterLoaded(in *Instance, at int, c *route.Columns) bool {
	if c.Adapters == nil || c.Lately == nil {
		return false
	}
	to := in.U32(at)[:len(c.Adapters)]
	for i, n := range c.Adapters {
		to[i] = 0
		if n == 0 || c.Lately[i] <= loadedFor {
			to[i] = 1
		}
	}
	return true
}

// forget writes that nothing of a column is known.
func (in *Instance) forget(column int) {
	words, unknown := in.inputs[column], in.policy.unknowns[column]
	for i := range words {
		words[i] = unknown
	}
}
