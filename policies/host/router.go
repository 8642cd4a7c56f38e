package host

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/policies/abi"
)

// Router scores candidates by a policy in Wasm. It is a [route.Policy]: when the
// guest cannot answer, the fallback does, in the same call.
type Router struct {
	policy   *Policy
	fallback route.Policy
	fills    []fill // of the manifest's columns
	filled   uint64 // a bit for each that is known
	faults   [faultKinds]atomic.Uint64
}

// fill writes one column for all candidates.
type fill func(in *Instance, column int, c *route.Columns)

// Fault is why a fallback answered.
type Fault int

// The faults.
const (
	FaultBusy    Fault = iota // all instances were lent
	FaultFuel                 // the budget was used up
	FaultTrap                 // the guest trapped
	FaultRefused              // the guest said that it cannot say
	FaultRows                 // more candidates than the guest has room for
	FaultScores               // no candidate got a score that is a number
	faultKinds
)

// String is the fault's name in metrics.
func (f Fault) String() string {
	return [...]string{"busy", "fuel", "trap", "refused", "rows", "scores"}[f]
}

// ErrColumn says that a policy needs a column that this host does not have.
var ErrColumn = errors.New("column not available")

// NewRouter makes a router of a policy that scores. The policy stays the caller's to
// close. Errors wrap [ErrColumn] or [ErrRefused].
func NewRouter(p *Policy, fallback route.Policy) (*Router, error) {
	r := &Router{policy: p, fallback: fallback}
	if p.manifest.Kind != abi.Router || p.export != abi.ExportScore {
		return nil, fmt.Errorf("%w: %s is of kind %s and answers by %s, not by %s", ErrRefused, p.manifest.Name, p.manifest.Kind, p.export, abi.ExportScore)
	}
	for i, c := range p.manifest.Columns {
		f := fillOf(c.Name)
		switch {
		case f != nil:
			r.filled |= 1 << i
		case !c.Optional:
			return nil, fmt.Errorf("%w: %s needs %q, which routing does not collect; make it optional", ErrColumn, p.manifest.Name, c.Name)
		default:
			f = unknown
		}
		r.fills = append(r.fills, f)
	}
	return r, nil
}

// Name is the policy's name and version.
func (r *Router) Name() string { return r.policy.manifest.Name + "@" + r.policy.manifest.Version }

// Faults is how often the fallback answered for that reason.
func (r *Router) Faults(f Fault) uint64 { return r.faults[f].Load() }

// Score writes the candidates' costs: the guest's, or the fallback's. A score that
// is not finite makes a candidate ineligible; if none is left, the fallback scores
// all, for a policy may make a decision worse and never impossible.
func (r *Router) Score(q *route.Query, c *route.Columns, cost []float64) {
	if fault, ok := r.ask(q, c, cost); !ok {
		r.faults[fault].Add(1)
		r.fallback.Score(q, c, cost)
	}
}

func (r *Router) ask(q *route.Query, c *route.Columns, cost []float64) (fault Fault, ok bool) {
	in := r.policy.Take()
	if in == nil {
		return FaultBusy, false
	}
	defer r.policy.Put(in)
	if len(cost) > in.Rows() {
		return FaultRows, false
	}
	for i, fill := range r.fills {
		fill(in, i, c)
	}
	request := abi.RouterRequest{
		Seed: q.Draw, Model: xxhash.Sum64String(q.Model), Columns: r.filled,
		Prompt: clamp(float64(q.Prompt)), Output: abi.UnknownU32, BlockTokens: clamp(float64(q.BlockTokens)),
		SLOFirst: nan32, SLOBetween: nan32, WaitedMillis: nan32,
	}
	request.Put(in.Request())
	in.Seed(q.Draw)
	scores, err := in.Score(len(cost))
	if err != nil {
		return faultOf(err), false
	}
	return FaultScores, finite(scores, cost)
}

var nan32 = float32(math.NaN())

// clamp makes a count a u32.
func clamp(v float64) uint32 { return uint32(min(max(v, 0), float64(abi.UnknownU32-1))) }

func faultOf(err error) Fault {
	switch {
	case errors.Is(err, ErrFuel):
		return FaultFuel
	case errors.Is(err, ErrTrap):
		return FaultTrap
	default:
		return FaultRefused
	}
}

// finite copies scores, with NaN for what is infinite, and says whether one is left,
// or there were none to begin with.
func finite(scores []float32, cost []float64) bool {
	some := len(scores) == 0
	for i, s := range scores {
		v := float64(s)
		// The difference of a number with itself is 0, of anything else NaN.
		if v-v == 0 {
			some = true
		} else {
			v = math.NaN()
		}
		cost[i] = v
	}
	return some
}

// fillOf finds what fills a column, or nil.
func fillOf(name string) fill {
	switch name {
	case "key_low":
		return func(in *Instance, at int, c *route.Columns) { keys(in.U32(at), c.Key, 0) }
	case "key_high":
		return func(in *Instance, at int, c *route.Columns) { keys(in.U32(at), c.Key, 32) }
	case "in_flight":
		return numbers(func(c *route.Columns) []float64 { return c.InFlight })
	case "requests":
		return numbers(func(c *route.Columns) []float64 { return c.Requests })
	case "queued_tokens":
		return numbers(func(c *route.Columns) []float64 { return c.Queued })
	case "hit_tokens":
		return numbers(func(c *route.Columns) []float64 { return c.Hit })
	case "active_blocks":
		return numbers(func(c *route.Columns) []float64 { return c.Active })
	case "capacity_blocks":
		return numbers(func(c *route.Columns) []float64 { return c.Capacity })
	case "running":
		return numbers(func(c *route.Columns) []float64 { return c.Running })
	case "waiting":
		return numbers(func(c *route.Columns) []float64 { return c.Waiting })
	case "prefill_rate":
		return numbers(func(c *route.Columns) []float64 { return c.Rate })
	case "prefill_seconds_per_token":
		return func(in *Instance, at int, c *route.Columns) { inverses(in.F32(at), c.Rate) }
	case "siblings":
		return numbers(func(c *route.Columns) []float64 { return c.Siblings })
	case "share":
		return numbers(func(c *route.Columns) []float64 { return c.Share })
	default:
		return nil
	}
}

// numbers fills a column from one of the router's.
func numbers(of func(c *route.Columns) []float64) fill {
	return func(in *Instance, at int, c *route.Columns) {
		from := of(c)
		to := in.F32(at)[:len(from)]
		for i, v := range from {
			to[i] = float32(v)
		}
	}
}

func inverses(to []float32, rates []float64) {
	to = to[:len(rates)]
	for i, v := range rates {
		to[i] = float32(1 / v)
	}
}

func keys(to []uint32, from []uint64, shift uint) {
	to = to[:len(from)]
	for i, v := range from {
		to[i] = uint32(v >> shift)
	}
}

// unknown fills a column that nobody collects.
func unknown(in *Instance, at int, c *route.Columns) {
	column := in.U32(at)[:len(c.Worker)]
	word := in.policy.unknowns[at]
	for i := range column {
		column[i] = word
	}
}
