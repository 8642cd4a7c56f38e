package scale

import (
	"fmt"
	"math"

	"github.com/yardmaster/yardmaster/core/native"
)

// Backpressure follows how far a pool is from what is wanted of it. Its pressure is
// the greatest of
//
//	time to first token (95th percentile) over the wanted one
//	time between tokens (95th percentile) over the wanted one
//	KV usage over KV
//	requests that wait, over Queue for each replica
//
// Above 1 + Band it grows in proportion, to twice the size at most; it shrinks by one
// when the pressure was below 1 − 2·Band in every sample of the window and would be
// so with one replica less. In between nothing changes. Source: hierarchical
// backpressure as in Chiron, with a dead band.
type Backpressure struct {
	Band      float64 // 0 means 0.15
	KV, Queue float64 // 0 means 0.85 and 4
}

// Name is "backpressure".
func (*Backpressure) Name() string { return "backpressure" }

// Tune makes one with other parameters.
func (*Backpressure) Tune(s *native.Params) Policy {
	var p Backpressure
	s.Number(&p.Band, native.Param{Name: "band", Default: .15, Least: .001, Most: .5, Help: "how far from what is wanted nothing changes"})
	s.Number(&p.KV, native.Param{Name: "kv", Default: .85, Least: .001, Most: 1, Help: "KV usage that is wanted at most"})
	s.Number(&p.Queue, native.Param{Name: "queue", Default: 4, Least: .001, Most: 1e6, Help: "waiting requests per replica that are wanted at most"})
	return &p
}

// Tick is the rule of the type.
func (p *Backpressure) Tick(w *Window, want []Want) {
	for i := range w.Pools {
		want[i] = p.pool(&w.Pools[i])
	}
}

func (p *Backpressure) pool(pool *Pool) Want {
	s := pool.Now()
	if sleeping, ok := asleep(s); ok {
		return sleeping
	}
	n, ok := serving(s)
	now, cause, known := p.pressure(pool, s)
	if !ok || !known {
		return keep("pressure unknown")
	}
	band := or0(p.Band, .15)
	reason := fmt.Sprintf("pressure %.2f by %s", now, cause)
	if now > 1+band {
		return Want{Replicas: max(whole(n+1), whole(n*min(now, 2))), Reason: reason}
	}
	if n <= 1 || now*n/(n-1) >= 1-2*band {
		return keep(reason)
	}
	for i := range pool.Samples {
		if before, _, known := p.pressure(pool, &pool.Samples[i]); !known || before >= 1-2*band {
			return keep(reason)
		}
	}
	return Want{Replicas: whole(n - 1), Reason: reason}
}

func (p *Backpressure) pressure(pool *Pool, s *Sample) (pressure float64, cause string, known bool) {
	take := func(of string, value, wanted float64) {
		v, ok := usable(value)
		if !ok || !(wanted > 0) {
			return
		}
		known = true
		if v/wanted > pressure || cause == "" {
			pressure, cause = v/wanted, of
		}
	}
	take("time to first token", s.FirstP95, milliseconds(pool.First))
	take("time between tokens", s.BetweenP95, milliseconds(pool.Between))
	take("KV usage", s.KVUsage, or0(p.KV, .85))
	waiting, _ := waitingOf(s)
	if s.Waiting >= 0 || s.Queued >= 0 {
		take("queues", waiting, or0(p.Queue, 4)*math.Max(or(s.Ready, 1), 1))
	}
	return pressure, cause, known
}
