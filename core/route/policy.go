package route

import (
	"fmt"
	"math"
	"strings"
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

// needs are the columns that a policy reads of those that are filled for nobody
// else.
type needs uint8

const (
	needsSiblings needs = 1 << iota
	needsActive
	needsStep     // Step
	needsTransfer // TokenBytes and Group
	needsAdapters // Adapters, AdapterSlots and Lately
	needsWindow   // Missed and Found
	needsAll      = 1<<iota - 1
)

// modest is a [Policy] that does without some of them.
type modest interface{ needs() needs }

func needsOf(p Policy) needs {
	if m, ok := p.(modest); ok {
		return m.needs()
	}
	return needsAll
}

func (RoundRobin) needs() needs   { return 0 }
func (LeastRequest) needs() needs { return 0 }
func (LMetric) needs() needs      { return 0 }
func (BoundedHash) needs() needs  { return 0 }
func (PowerOfTwo) needs() needs   { return needsActive }
func (KVCost) needs() needs       { return needsActive }
func (Sticky) needs() needs       { return needsSiblings }

func (b Blend) needs() needs {
	var all needs
	for _, p := range b.Parts {
		all |= needsOf(p.Policy)
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

// PolicyNamed returns a native policy by its name. Several, each with a weight,
// make a [Blend]: "sticky=3,least-request=1".
func PolicyNamed(name string) (Policy, error) {
	if strings.ContainsAny(name, "=,") {
		return parseBlend(name)
	}
	var names []string
	for _, p := range Policies() {
		if p.Name() == name {
			return p, nil
		}
		names = append(names, p.Name())
	}
	last := len(names) - 1
	return nil, fmt.Errorf("unknown routing policy %q: use %s or %s", name, strings.Join(names[:last], ", "), names[last])
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
