package host

import (
	"errors"
	"math"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/policies/abi"
)

// Router scores candidates by a policy in Wasm, or has it pick one. It is a
// [route.Policy]: when the guest cannot answer, the fallback does, in the same call.
// It may be used from several goroutines.
type Router struct {
	*caller
	fallback route.Policy
	fills    []fill // of the manifest's columns; nil where nobody ever fills one
	needs    route.Needs
}

// ErrColumn says that a policy needs a column that this host does not have.
var ErrColumn = errors.New("column not available")

// NewRouter makes a router of a policy of that kind. The policy stays the caller's to
// close. Errors wrap [ErrColumn] or [ErrRefused].
func NewRouter(p *Policy, fallback route.Policy) (*Router, error) {
	c, err := p.callerOf(abi.Router)
	if err != nil {
		return nil, err
	}
	sources, _, err := columnsOf(p.manifest, routerColumns(), "routing does not collect")
	if err != nil {
		return nil, err
	}
	r := &Router{caller: c, fallback: fallback, needs: route.NeedsOf(fallback)}
	for _, s := range sources {
		r.fills, r.needs = append(r.fills, s.fill), r.needs|s.needs
	}
	return r, nil
}

// Needs are the columns that the policy or its fallback read of those that routing
// fills on demand.
func (r *Router) Needs() route.Needs { return r.needs }

// Faults is how often the fallback answered for that reason.
func (r *Router) Faults(f Fault) uint64 { return r.tally.kinds[f].Load() }

// Score writes the candidates' costs: the guest's, or the fallback's, which then is
// said in the columns. A score that is not finite makes a candidate ineligible; if none
// is left, the fallback scores all, for a policy may make a decision worse and never
// impossible.
func (r *Router) Score(q *route.Query, c *route.Columns, cost []float64) {
	if fault := r.Try(q, c, cost); fault != NoFault {
		c.FellBack(fault.String())
		r.fallback.Score(q, c, cost)
	}
}

// Try is Score without the fallback: unless it returns NoFault, what it has written is
// nothing.
func (r *Router) Try(q *route.Query, c *route.Columns, cost []float64) Fault {
	fault := r.ask(q, c, cost)
	r.tally.add(fault)
	return fault
}

func (r *Router) ask(q *route.Query, c *route.Columns, cost []float64) Fault {
	in := r.policy.Take()
	if in == nil {
		return r.policy.none()
	}
	fault := r.lent(in, q, c, cost)
	r.policy.Put(in)
	return fault
}

// lent asks an instance.
func (r *Router) lent(in *Instance, q *route.Query, c *route.Columns, cost []float64) Fault {
	n := len(cost)
	if n > in.Rows() {
		return FaultRows
	}
	filled := uint64(0)
	for i, fill := range r.fills {
		switch {
		case fill != nil && fill(in, i, c):
			filled |= 1 << i
		case in.known&(1<<i) != 0:
			in.forget(i) // it was filled when the instance was lent before
		}
	}
	in.known = filled
	request := requestOf(q, filled)
	request.Put(in.Request())
	in.Seed(q.Draw)
	if r.policy.export == abi.ExportRoute {
		return route1(in, cost)
	}
	scores, err := in.Score(n)
	if err != nil {
		return faultOf(err)
	}
	if !widen(cost, scores) && n > 0 {
		return FaultScores
	}
	return NoFault
}

// route1 has the guest pick: what it picks costs 0, and everybody else is taken only
// when that is not.
func route1(in *Instance, cost []float64) Fault {
	row, err := in.Route(len(cost))
	if err != nil {
		return faultOf(err)
	}
	for i := range cost {
		cost[i] = math.Inf(1)
	}
	cost[row] = 0
	return NoFault
}

// requestOf is a query as the guest sees it.
func requestOf(q *route.Query, filled uint64) abi.RouterRequest {
	r := abi.RouterRequest{
		Seed: q.Draw, Model: xxhash.Sum64String(q.Model), Tenant: q.Tenant, Session: q.Session, Columns: filled,
		Prompt: clamp(float64(q.Prompt)), Output: abi.UnknownU32, BlockTokens: clamp(float64(q.BlockTokens)), Class: q.Class,
		SLOFirst: wanted(q.First), SLOBetween: wanted(q.Between), WaitedMillis: float32(q.Waited.Seconds() * 1000),
	}
	if q.Output > 0 {
		r.Output = clamp(float64(q.Output))
	}
	if q.Prefill {
		r.Phase = 1
	}
	return r
}

// wanted is a time in milliseconds; 0 is none, and NaN for the guest.
func wanted(d time.Duration) float32 {
	if d <= 0 {
		return nan32
	}
	return float32(d.Seconds() * 1000)
}

var nan32 = float32(math.NaN())

// clamp makes a count a u32.
func clamp(v float64) uint32 { return uint32(min(max(v, 0), float64(abi.UnknownU32-1))) }
