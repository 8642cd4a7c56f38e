package route

import (
	"time"

	"github.com/yardmaster/yardmaster/core/native"
)

// LoRA keeps requests for an adapter with the workers that have it loaded: it
// divides the costs of another policy by
//
//	1.0  the adapter is loaded: it was asked for here within Memory, or the
//	     model is the worker's own
//	0.8  there is room: the worker keeps as many adapters loaded as it serves
//	0.6  it serves more than it keeps (the label adapter-slots), so that the
//	     request may wait for one to be unloaded
//
// Those that do not serve it, 0 in the original, are no candidates. Source: the
// LoRA affinity scorer of the llm-d router, a factor here.
//
// Adapters are a worker's models beyond the first. No worker says which are
// loaded; what this gateway asked it for lately stands for that.
type LoRA struct {
	// Of is the policy whose costs are divided, which must not be negative; nil
	// means [KVCost].
	Of Policy
	// Memory is how long an adapter that is not asked for is taken to stay loaded;
	// 0 means 5 min.
	Memory time.Duration
}

// Name is "lora".
func (LoRA) Name() string { return "lora" }

// Needs is what the policy reads of what is filled on demand.
func (p LoRA) Needs() Needs { return NeedsAdapters | NeedsOf(p.of()) }

// Tune sets the parameters.
func (p LoRA) Tune(s *native.Params) Policy {
	s.Seconds(&p.Memory, native.Param{Name: "memory_seconds", Default: 300, Least: .001, Most: 86400, Help: "how long an adapter that nobody asks for is taken to stay loaded"})
	return p
}

func (p LoRA) of() Policy {
	if p.Of == nil {
		return KVCost{}
	}
	return p.Of
}

// Score divides the costs; what the other policy finds ineligible stays so.
func (p LoRA) Score(q *Query, c *Columns, cost []float64) {
	if p.Memory == 0 {
		p.Memory = 5 * time.Minute
	}
	p.of().Score(q, c, cost)
	for i := range cost {
		cost[i] /= p.affinity(c, i)
	}
}

func (p LoRA) affinity(c *Columns, i int) float64 {
	switch {
	case c.Adapters == nil || c.Adapters[i] == 0:
		return 1
	case c.Lately != nil && c.Lately[i] <= p.Memory.Seconds():
		return 1
	case c.AdapterSlots != nil && c.AdapterSlots[i] < c.Adapters[i]:
		return .6
	}
	return .8
}
