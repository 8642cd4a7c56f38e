package route

import (
	"math"

	"github.com/yardmaster/yardmaster/core/native"
)

// Policy scores candidates. It is pure: what it knows is in its arguments, and
// what it needs of chance is in [Query.Draw].
type Policy interface {
	// Name is the policy's name in configuration and explanations.
	Name() string
	// Score writes the cost of each candidate; the lowest wins, NaN is out. cost
	// has the length of the columns, which Score does not change.
	Score(q *Query, c *Columns, cost []float64)
}

// Needs are the columns that a policy reads of those that are filled for nobody
// else.
type Needs uint8

// The columns that cost something, or that few policies read.
const (
	NeedsSiblings Needs = 1 << iota // [Columns.Siblings]
	NeedsActive                     // [Columns.Active]
	NeedsStep                       // [Columns.Step]
	NeedsTransfer                   // [Columns.TokenBytes] and [Columns.Group]
	NeedsAdapters                   // [Columns.Adapters], [Columns.AdapterSlots] and [Columns.Lately]
	NeedsWindow                     // [Columns.Missed] and [Columns.Found]
	NeedsPlace                      // [Columns.Role] and [Columns.Zone]
	NeedsAge                        // [Columns.Age]
	NeedsAll      Needs = 1<<iota - 1
)

// Modest is a [Policy] that does without some of them.
type Modest interface{ Needs() Needs }

// NeedsOf is what a policy says it reads, or all.
func NeedsOf(p Policy) Needs {
	if m, ok := p.(Modest); ok {
		return m.Needs()
	}
	return NeedsAll
}

// Needs is what the policy reads of what is filled on demand.
func (RoundRobin) Needs() Needs { return 0 }

// Needs is what the policy reads of what is filled on demand.
func (LeastRequest) Needs() Needs { return 0 }

// Needs is what the policy reads of what is filled on demand.
func (LMetric) Needs() Needs { return 0 }

// Needs is what the policy reads of what is filled on demand.
func (BoundedHash) Needs() Needs { return 0 }

// Needs is what the policy reads of what is filled on demand.
func (PowerOfTwo) Needs() Needs { return NeedsActive }

// Needs is what the policy reads of what is filled on demand.
func (KVCost) Needs() Needs { return NeedsActive }

// Needs is what the policy reads of what is filled on demand.
func (Sticky) Needs() Needs { return NeedsSiblings }

// Needs is what the parts read of what is filled on demand.
func (b Blend) Needs() Needs {
	var all Needs
	for _, p := range b.Parts {
		all |= NeedsOf(p.Policy)
	}
	return all
}

// Policies are the native policies with their defaults, the default one first.
func Policies() []Policy {
	return []Policy{
		Sticky{},
		KVCost{},
		LMetric{},
		Mooncake{},
		Preble{},
		PredictedLatency{},
		LoRA{},
		LLMD{},
		LeastRequest{},
		PowerOfTwo{},
		BoundedHash{},
		RoundRobin{},
	}
}

// PolicyNamed reads a native policy: a name, with parameters behind it where others
// than their defaults are wanted, "sticky(hold=40)". Several, each with a weight, make
// a [Blend]: "sticky=3,least-request=1".
func PolicyNamed(text string) (Policy, error) {
	parts, err := native.ParseParts(text)
	if err != nil {
		return nil, err
	}
	var b Blend
	for _, part := range parts {
		p, err := PolicyWith(part.Name, part.Params)
		if err != nil {
			return nil, err
		}
		b.Parts = append(b.Parts, Weighted{p, part.Weight})
	}
	if len(b.Parts) == 1 {
		return b.Parts[0].Policy, nil
	}
	return b, nil
}

// PolicyWith is the native policy of that name, with parameters by name; those left
// out have their defaults.
func PolicyWith(name string, params map[string]float64) (Policy, error) {
	return native.Named("routing", name, params, Policies())
}

// RoundRobin takes the candidates in turn.
type RoundRobin struct{}

// Name is "round-robin".
func (RoundRobin) Name() string { return "round-robin" }

// Score gives the candidate whose turn it is 0, and the others their distance.
func (RoundRobin) Score(q *Query, c *Columns, cost []float64) {
	n := uint64(len(cost))
	for i := range cost {
		cost[i] = float64((uint64(i) + n - q.Turn%n) % n)
	}
}

// LeastRequest takes the candidate with the fewest requests in flight.
type LeastRequest struct{}

// Name is "least-request".
func (LeastRequest) Name() string { return "least-request" }

// Score is the number of requests.
func (LeastRequest) Score(_ *Query, c *Columns, cost []float64) { copy(cost, c.Requests) }

// PowerOfTwo draws two candidates and takes the one with less work: prompt
// tokens that queue, and a token for each active KV block.
type PowerOfTwo struct{}

// Name is "power-of-two".
func (PowerOfTwo) Name() string { return "power-of-two" }

// Score is U + K for the two, and infinite for the others, which are taken only
// when the two are not.
func (PowerOfTwo) Score(q *Query, c *Columns, cost []float64) {
	n := uint64(len(cost))
	first := q.Draw % n
	second := first
	if n > 1 {
		second = (first + 1 + q.Draw/n%(n-1)) % n
	}
	for i := range cost {
		cost[i] = math.Inf(1)
		if j := uint64(i); j == first || j == second {
			cost[i] = c.Queued[i] + c.Active[i]
		}
	}
}
