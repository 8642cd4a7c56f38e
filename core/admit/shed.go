package admit

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/yardmaster/yardmaster/core/native"
)

// VTC shares the fleet fairly among tenants by the service they got: while requests
// wait, a tenant's next one is the sooner served the less service it has had, from
// priority 255 for the tenant with the least down to 0 for one that is a Lead of
// tokens ahead. Classes do not count. Source: the virtual token counter; counters
// are kept by [Tenants].
type VTC struct {
	Lead float64 // 0 means 100,000 tokens
}

// Name is "vtc".
func (VTC) Name() string { return "vtc" }

// Tune sets the parameters.
func (p VTC) Tune(s *native.Params) Policy {
	s.Number(&p.Lead, native.Param{Name: "lead", Default: 100_000, Least: 1, Most: 1e12, Help: "tokens of service ahead that make a tenant the last"})
	return p
}

// Admit orders the tenant's request in the queue.
func (p VTC) Admit(a *Ask) Verdict {
	lead := p.Lead
	if !(lead > 0) {
		lead = 100_000
	}
	ahead := a.TenantService - a.LeastService
	if !(ahead > 0) {
		ahead = 0 // also where nothing is known
	}
	return Verdict{Priority: uint8(math.Round(255 * (1 - min(ahead/lead, 1))))}
}

// EarlyRejection refuses what would be too late anyway: a request whose predicted
// time to first token is over the wanted one or the client's deadline, or whose
// predicted time between tokens is over the wanted one. What is unknown refuses
// nothing. Source: early rejection in Mooncake.
type EarlyRejection struct{}

// Name is "early-rejection".
func (EarlyRejection) Name() string { return "early-rejection" }

// Admit compares predictions with what is wanted.
func (EarlyRejection) Admit(a *Ask) Verdict {
	late := func(predicted, wanted float64, reason string) (Verdict, bool) {
		if !(wanted > 0) || !(predicted > wanted) {
			return Verdict{}, false
		}
		wait := min(predicted-wanted, 60_000)
		return Verdict{Action: Reject, RetryAfter: time.Duration(math.Ceil(wait)) * time.Millisecond, Reason: reason}, true
	}
	if v, ok := late(a.First, a.WantedFirst, "slo_ttft"); ok {
		return v
	}
	if v, ok := late(a.First, a.Deadline, "deadline"); ok {
		return v
	}
	if v, ok := late(a.Between, a.WantedBetween, "slo_itl"); ok {
		return v
	}
	return Verdict{Priority: priority(a.Class)}
}

// Probabilistic sheds requests below [Standard] the more likely, the more saturated
// the fleet is: with probability
//
//	min(1, K·s^Power)   where s = max(waiting per worker/5, KV usage/0.8)
//
// which is nothing much below s = 0.2 and everything above 0.32. A fleet of which
// nothing is known is saturated. Source: the probabilistic admitter and the
// saturation of the llm-d router.
type Probabilistic struct {
	Power, K float64 // 0 means 5 and 300
}

// Name is "probabilistic".
func (Probabilistic) Name() string { return "probabilistic" }

// Tune sets the parameters.
func (p Probabilistic) Tune(s *native.Params) Policy {
	s.Number(&p.Power, native.Param{Name: "power", Default: 5, Least: .001, Most: 1000, Help: "how steeply shedding sets in"})
	s.Number(&p.K, native.Param{Name: "k", Default: 300, Least: .001, Most: 1e12, Help: "share shed at a saturation of 1, before it is cut at all"})
	return p
}

// Admit draws by the request's seed, so that a decision can be replayed.
func (p Probabilistic) Admit(a *Ask) Verdict {
	if a.Class < Standard && rand.New(rand.NewPCG(a.Seed, 0)).Float64() < p.share(a) {
		return Verdict{Action: Reject, RetryAfter: time.Second, Reason: "shed"}
	}
	return Verdict{Priority: priority(a.Class)}
}

// share is the part of such requests that is shed.
func (p Probabilistic) share(a *Ask) float64 {
	power, k := p.Power, p.K
	if power == 0 {
		power = 5
	}
	if k == 0 {
		k = 300
	}
	return min(1, k*math.Pow(saturation(a), power))
}

func saturation(a *Ask) float64 {
	if a.Workers == 0 {
		return 1
	}
	s := float64(a.Waiting) / float64(a.Workers) / 5
	if a.KVUsage >= 0 {
		s = max(s, a.KVUsage/.8)
	}
	return s
}
