package scale

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/yardmaster/yardmaster/core/fleet"
)

// Key names a pool: the workers of one role that serve a model.
type Key struct {
	Model string // the workers' base model
	Role  fleet.Role
}

// KeyOf is the pool of a worker.
func KeyOf(w *fleet.Worker) Key {
	k := Key{Role: w.Role}
	if len(w.Models) > 0 {
		k.Model = w.Models[0]
	}
	return k
}

func (k Key) String() string { return k.Model + "/" + k.Role.String() }

// Compare orders keys, by model and then by role.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Model, other.Model), cmp.Compare(k.Role, other.Role))
}

// The bounds of a plan. They belong to its entry in the log.
const (
	MaxPools    = 1024
	MaxReplicas = 16384 // of all pools together
	maxText     = 256   // bytes of a reason, or of the policy's name
)

// Plan is how many workers each pool is to have. Actuators make the fleet so.
type Plan struct {
	Pools  []PoolPlan // by key, each once
	Budget uint32     // the most workers of all pools together; 0 means MaxReplicas
	Policy string     // that wanted it: name@version
	At     int64      // Unix time in milliseconds at the leader when it was made
}

// PoolPlan is one pool's part of a plan.
type PoolPlan struct {
	Key
	Desired uint32
	Reason  string // for people, short
}

// Find returns the part of a pool, and whether there is one.
func (p *Plan) Find(k Key) (PoolPlan, bool) {
	if p == nil {
		return PoolPlan{}, false
	}
	i, ok := slices.BinarySearchFunc(p.Pools, k, func(x PoolPlan, k Key) int { return x.Compare(k) })
	if !ok {
		return PoolPlan{}, false
	}
	return p.Pools[i], true
}

// Same reports whether both ask for the same workers, whatever the reason.
func (p *Plan) Same(other *Plan) bool {
	return p != nil && other != nil && p.Budget == other.Budget &&
		slices.EqualFunc(p.Pools, other.Pools, func(a, b PoolPlan) bool { return a.Key == b.Key && a.Desired == b.Desired })
}

// Validate reports every fault of a plan at once.
func (p *Plan) Validate() error {
	var faults []error
	if len(p.Pools) > MaxPools {
		faults = append(faults, fmt.Errorf("%d pools, of which %d are allowed", len(p.Pools), MaxPools))
	}
	budget := uint64(p.Budget)
	if budget == 0 || budget > MaxReplicas {
		budget = MaxReplicas
	}
	var sum uint64
	for i, pool := range p.Pools {
		if pool.Model == "" || pool.Role.String() == "unknown" {
			faults = append(faults, fmt.Errorf("pool %d has no model or role", i))
		}
		if i > 0 && p.Pools[i-1].Compare(pool.Key) >= 0 {
			faults = append(faults, fmt.Errorf("pool %s is out of order or twice", pool.Key))
		}
		if len(pool.Reason) > maxText || len(pool.Model) > 2*maxText {
			faults = append(faults, fmt.Errorf("pool %d: a text is too long", i))
		}
		sum += uint64(pool.Desired)
	}
	if sum > budget {
		faults = append(faults, fmt.Errorf("%d workers in sum, over the budget of %d", sum, budget))
	}
	if len(p.Policy) > maxText {
		faults = append(faults, errors.New("the policy's name is too long"))
	}
	return errors.Join(faults...)
}
