package scale

import (
	"fmt"

	"github.com/yardmaster/yardmaster/core/native"
)

// Saturation keeps room in the queues and caches of a pool, the default policy.
//
// A replica is saturated at KV usage KV or with Queue requests that wait. The room
// of a pool is what is left to that on average. It grows by one replica, or in
// proportion when it has no room at all, when the room is below SpareKV or
// SpareQueue; it shrinks by one when the load of the others would leave them room
// after that. Source: the saturation analyser of the workload variant autoscaler.
//
// With Tokens it counts tokens instead: the demand, tokens in caches and the prompt
// tokens of those that wait, over the supply, the caches' tokens. It grows above Up
// to what brings the demand down to that, and shrinks below Down. Source: the
// second version of the same.
type Saturation struct {
	KV, Queue           float64 // 0 means 0.8 and 5
	SpareKV, SpareQueue float64 // 0 means 0.1 and 3
	Tokens              bool
	Up, Down            float64 // 0 means 0.8 and 0.4
}

// Name is "queue-and-kv", or "queue-and-kv-tokens".
func (p *Saturation) Name() string {
	if p.Tokens {
		return "queue-and-kv-tokens"
	}
	return "queue-and-kv"
}

// Tune makes one with other parameters, those of its form.
func (p *Saturation) Tune(s *native.Params) Policy {
	out := Saturation{Tokens: p.Tokens}
	if out.Tokens {
		s.Number(&out.Up, native.Param{Name: "up", Default: .8, Least: .001, Most: 1, Help: "demand over supply above which a pool grows"})
		s.Number(&out.Down, native.Param{Name: "down", Default: .4, Least: .001, Most: 1, Help: "demand over supply below which a pool shrinks"})
		return &out
	}
	s.Number(&out.KV, native.Param{Name: "kv", Default: .8, Least: .001, Most: 1, Help: "KV usage that saturates a replica"})
	s.Number(&out.Queue, native.Param{Name: "queue", Default: 5, Least: .001, Most: 1e6, Help: "waiting requests that saturate a replica"})
	s.Number(&out.SpareKV, native.Param{Name: "spare_kv", Default: .1, Least: .001, Most: 1, Help: "KV usage to be left to that on average"})
	s.Number(&out.SpareQueue, native.Param{Name: "spare_queue", Default: 3, Least: .001, Most: 1e6, Help: "waiting requests to be left to that on average"})
	return &out
}

// Tick is the rule of the type.
func (p *Saturation) Tick(w *Window, want []Want) {
	for i := range w.Pools {
		s := w.Pools[i].Now()
		if sleeping, ok := asleep(s); ok {
			want[i] = sleeping
			continue
		}
		if p.Tokens {
			want[i] = p.tokens(s)
		} else {
			want[i] = p.room(s)
		}
	}
}

func (p *Saturation) room(s *Sample) Want {
	kv, queue := or0(p.KV, .8), or0(p.Queue, 5)
	spareKV, spareQueue := or0(p.SpareKV, .1), or0(p.SpareQueue, 3)
	n, ok := serving(s)
	usage, knownKV := usable(s.KVUsage)
	waiting, knownQueue := waitingOf(s)
	if !ok || !knownKV && !knownQueue {
		return keep("queues and caches unknown")
	}
	usage, each := or(usage, 0), waiting/n
	reason := fmt.Sprintf("KV usage %.2f of %.2f, %.1f of %.0f requests wait at each", usage, kv, each, queue)
	if kv-usage < spareKV || queue-each < spareQueue {
		return Want{Replicas: max(whole(n+1), whole(n*max(usage/kv, each/queue))), Reason: reason}
	}
	if n > 1 {
		less := n / (n - 1)
		if kv-usage*less >= 2*spareKV && queue-each*less >= spareQueue+1 && each < 1 {
			return Want{Replicas: whole(n - 1), Reason: reason}
		}
	} else if usage == 0 && waiting == 0 && or(s.Running, 1) == 0 && or(s.Arrivals, 1) == 0 {
		return Want{Replicas: 0, Reason: "nobody asks"}
	}
	return keep(reason)
}

func (p *Saturation) tokens(s *Sample) Want {
	up, down := or0(p.Up, .8), or0(p.Down, .4)
	n, ok := serving(s)
	usage, okUsage := usable(s.KVUsage)
	supply, okSupply := usable(s.KVTokens)
	if !ok || !okUsage || !okSupply || supply == 0 {
		return keep("tokens in caches unknown")
	}
	waiting, _ := waitingOf(s)
	demand := usage*supply*n + waiting*promptOf(s)
	share := demand / (supply * n)
	reason := fmt.Sprintf("demand %.2f of the caches, to stay between %.2f and %.2f", share, down, up)
	switch {
	case share > up:
		return Want{Replicas: whole(demand / (supply * up)), Reason: reason}
	case share < down && n > 1:
		return Want{Replicas: max(whole(demand/(supply*up)), whole(n-1)), Reason: reason}
	case demand == 0 && or(s.Running, 1) == 0 && or(s.Arrivals, 1) == 0:
		return Want{Replicas: 0, Reason: "nobody asks"}
	default:
		return keep(reason)
	}
}

// waitingOf is the requests that wait for the pool, at workers and at gateways.
func waitingOf(s *Sample) (n float64, known bool) {
	_, at := usable(s.Waiting)
	_, before := usable(s.Queued)
	return or(s.Waiting, 0) + or(s.Queued, 0), at || before
}

// promptOf is the tokens of a prompt, on average; 0 when that is unknown.
func promptOf(s *Sample) float64 {
	tokens, requests := or(s.PromptTokens, 0), or(s.Arrivals, 0)
	if requests == 0 {
		return 0
	}
	return tokens / requests
}
