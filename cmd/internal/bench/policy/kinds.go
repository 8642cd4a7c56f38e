package policy

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/host"
)

// benchOf is the bench for a policy's kind.
func benchOf(p *host.Policy) (*bench, error) {
	switch p.Manifest().Kind {
	case abi.Router:
		return routerBench(p)
	case abi.Admission:
		return admissionBench(p)
	case abi.Autoscaler:
		return autoscalerBench(p)
	default:
		return observerBench(p)
	}
}

// routerBench decides over fleets in which every column is known.
func routerBench(p *host.Policy) (*bench, error) {
	r, err := host.NewRouter(p, fallbackFor(p.Manifest()))
	if err != nil {
		return nil, err
	}
	return &bench{rows: 1, counts: r.Counts, prepare: func(n int, seed uint64) []contestant {
		fleets := make([]*made, situations)
		for i := range fleets {
			fleets[i] = newFleet(n, seed+uint64(i))
			fleets[i].complete(draw(seed + uint64(i)))
		}
		all := []contestant{{"", func(i int) { fleets[i].by(r) }}}
		for _, native := range []route.Policy{route.Sticky{}, route.KVCost{}, route.LeastRequest{}} {
			all = append(all, contestant{native.Name(), func(i int) { fleets[i].by(native) }})
		}
		return all
	}}, nil
}

// complete fills the columns that routing fills for those who need them, too.
func (f *made) complete(rng *rand.Rand) {
	c := &f.columns
	n := len(c.Worker)
	for _, column := range []struct {
		to   *[]float64
		most int
	}{
		{&c.Siblings, 16},
		{&c.Step, 1},
		{&c.Age, 5},
		{&c.TokenBytes, 1 << 17},
		{&c.Adapters, 8},
		{&c.AdapterSlots, 8},
		{&c.Lately, 600},
		{&c.Missed, 100_000},
		{&c.Found, 100_000},
	} {
		*column.to = make([]float64, n)
		for i := range n {
			(*column.to)[i] = float64(rng.IntN(column.most + 1))
		}
	}
	c.Group, c.Role, c.Zone = make([]uint32, n), make([]uint32, n), make([]uint32, n)
	for i := range n {
		c.Worker[i] = int32(i)
		c.Role[i], c.Zone[i] = uint32(fleet.RoleBoth), 1+rng.Uint32N(3)
		c.Capacity[i], c.Rate[i] = 20_000, float64(8000+rng.IntN(8000))
		c.InFlight[i] = float64(rng.IntN(int(c.Requests[i]) + 1))
		c.Running[i], c.Waiting[i], c.Share[i] = c.Requests[i]/2, c.Requests[i]/4, rng.Float64()*2
	}
}

// admissionBench decides over requests in all sorts of states.
func admissionBench(p *host.Policy) (*bench, error) {
	a, err := host.NewAdmission(p, nil)
	if err != nil {
		return nil, err
	}
	return &bench{counts: a.Counts, prepare: func(_ int, seed uint64) []contestant {
		asks := make([]admit.Ask, situations)
		for i := range asks {
			asks[i] = newAsk(draw(seed + uint64(i)))
		}
		all := []contestant{{"", func(i int) { a.Admit(&asks[i]) }}}
		for _, native := range admit.Policies() {
			all = append(all, contestant{native.Name(), func(i int) { native.Admit(&asks[i]) }})
		}
		return all
	}}, nil
}

func newAsk(rng *rand.Rand) admit.Ask {
	return admit.Ask{
		Now: time.Unix(1_700_000_000, 0), Seed: rng.Uint64(), Model: 1, Tenant: 1 + rng.Uint64N(16),
		Prompt: unit.Tokens(rng.IntN(8000)), Output: unit.Tokens(rng.IntN(800)), Class: admit.Class(rng.IntN(4)),
		Queued: rng.IntN(100), TenantQueued: rng.IntN(20), TenantRunning: rng.IntN(20), Workers: 1 + rng.IntN(16), Waiting: rng.IntN(50),
		TenantTokens: rng.Float64() * 1e6, TenantService: rng.Float64() * 1e5, LeastService: rng.Float64() * 1e4, KVUsage: rng.Float64(),
		First: rng.Float64() * 2000, WantedFirst: 1000, Between: rng.Float64() * 80, WantedBetween: 50, Deadline: rng.Float64() * 60_000, Waited: rng.Float64() * 500,
	}
}

// samplesEach is how many samples a pool has at a tick.
const samplesEach = 12

// autoscalerBench ticks over pools in all sorts of states.
func autoscalerBench(p *host.Policy) (*bench, error) {
	a, err := host.NewAutoscaler(p)
	if err != nil {
		return nil, err
	}
	return &bench{rows: 1, counts: a.Counts, prepare: func(n int, seed uint64) []contestant {
		windows := make([]scale.Window, situations)
		for i := range windows {
			windows[i] = newWindow(n, draw(seed+uint64(i)))
		}
		want := make([]scale.Want, n)
		all := []contestant{{"", func(i int) { a.Tick(&windows[i], want) }}}
		for _, native := range scale.Policies() {
			all = append(all, contestant{native.Name(), func(i int) { native.Tick(&windows[i], want) }})
		}
		return all
	}}, nil
}

func newWindow(pools int, rng *rand.Rand) scale.Window {
	w := scale.Window{Now: time.Unix(1_700_000_000, 0), Interval: 5 * time.Second, Budget: uint32(16 * pools), Seed: rng.Uint64()}
	for i := range pools {
		p := scale.Pool{
			Key:    scale.Key{Model: fmt.Sprintf("model-%04d", i), Role: fleet.RoleBoth},
			Limits: scale.Limits{Least: 1, Most: 32, First: time.Second, Between: 50 * time.Millisecond},
		}
		for range samplesEach {
			ready := float64(1 + rng.IntN(8))
			p.Samples = append(p.Samples, scale.Sample{
				Planned: ready, Ready: ready, Arrivals: rng.Float64() * 50, PromptTokens: rng.Float64() * 50_000, OutputTokens: rng.Float64() * 5000,
				HitRatio: rng.Float64(), Queued: float64(rng.IntN(20)), Running: float64(rng.IntN(200)), Waiting: float64(rng.IntN(50)), KVUsage: rng.Float64(),
				FirstP50: rng.Float64() * 500, FirstP95: rng.Float64() * 2000, BetweenP50: rng.Float64() * 40, BetweenP95: rng.Float64() * 80,
				PrefillRate: 12_000, DecodeRate: 2000, KVTokens: 300_000,
			})
		}
		w.Pools = append(w.Pools, p)
	}
	return w
}

// observerBench shows what became of requests; the binary has no observers.
func observerBench(p *host.Policy) (*bench, error) {
	o, err := host.NewObserver(p)
	if err != nil {
		return nil, err
	}
	return &bench{counts: o.Counts, prepare: func(n int, seed uint64) []contestant {
		batches := make([]host.Batch, situations)
		for i := range batches {
			batches[i] = newBatch(n, draw(seed+uint64(i)))
		}
		return []contestant{{"", func(i int) { o.Observe(&batches[i]) }}}
	}}, nil
}

func newBatch(n int, rng *rand.Rand) host.Batch {
	b := host.Batch{Now: time.Unix(1_700_000_000, 0), Seed: rng.Uint64(), Leader: true, Outcomes: make([]dispatch.Observation, n)}
	for i := range b.Outcomes {
		prompt := float64(16 * (1 + rng.IntN(500)))
		b.Outcomes[i] = dispatch.Observation{
			Worker: rng.Uint64(), Tenant: 1 + rng.Uint64N(16), Model: 1, Outcome: "ok",
			Prompt: prompt, PredictedHit: prompt / 2, Hit: prompt / 4, Output: float64(rng.IntN(500)),
			Queued: rng.Float64() / 10, First: rng.Float64(), Between: rng.Float64() / 20, Requests: float64(rng.IntN(64)), Cost: rng.Float64(),
		}
	}
	return b
}
