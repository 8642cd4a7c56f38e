package route

import "fmt"

// Columns describe the candidates of one phase, index for index.
type Columns struct {
	Worker   []int32   // place in View.Workers
	InFlight []float64 // this gateway's requests on the worker, both phases
	Queued   []float64 // prompt tokens this gateway sent that are not computed yet
}

func (c *Columns) reset() {
	c.Worker, c.InFlight, c.Queued = c.Worker[:0], c.InFlight[:0], c.Queued[:0]
}

// Policy scores candidates. It is pure: what it knows is in its arguments.
type Policy interface {
	// Name is the policy's name in configuration and explanations.
	Name() string
	// Score writes the cost of each candidate; the lowest wins, NaN is out.
	Score(q *Query, c *Columns, cost []float64)
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

// Score is the number of requests in flight.
func (LeastRequest) Score(_ *Query, c *Columns, cost []float64) { copy(cost, c.InFlight) }

// PolicyNamed returns a native policy by its name.
func PolicyNamed(name string) (Policy, error) {
	for _, p := range []Policy{LeastRequest{}, RoundRobin{}} {
		if p.Name() == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("unknown routing policy %q: use least-request or round-robin", name)
}
