package admit

import (
	"math"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/native"
)

// TokenBucket gives each tenant a number of tokens per second, prompt and expected
// output together, and a burst. A request that is larger than the burst is let in
// when the bucket is full, and owes the rest. Each gateway has buckets of its own.
type TokenBucket struct {
	perSecond, burst float64

	mu      sync.Mutex
	buckets map[uint64]bucket
}

type bucket struct {
	tokens float64
	at     time.Time
}

const (
	// usualRate and usualBurst suit a tenant with some dozens of chats at once.
	usualRate  = 50_000
	usualBurst = 500_000
	// usualOutput is expected of a request that does not say.
	usualOutput = 256
	// maxTenants bounds what is remembered of tenants.
	maxTenants = 4096
)

// NewTokenBucket makes a policy of perSecond tokens and a burst for each tenant; 0
// means 50,000 and 500,000.
func NewTokenBucket(perSecond, burst float64) *TokenBucket {
	if !(perSecond > 0) {
		perSecond = usualRate
	}
	if !(burst > 0) {
		burst = usualBurst
	}
	return &TokenBucket{perSecond: perSecond, burst: burst, buckets: map[uint64]bucket{}}
}

// Name is "token-bucket".
func (*TokenBucket) Name() string { return "token-bucket" }

// Tune makes one with other parameters.
func (*TokenBucket) Tune(s *native.Params) Policy {
	var perSecond, burst float64
	s.Number(&perSecond, native.Param{Name: "tokens_per_second", Default: usualRate, Least: .001, Most: 1e12, Help: "of each tenant, prompt and expected output together"})
	s.Number(&burst, native.Param{Name: "burst", Default: usualBurst, Least: 1, Most: 1e12, Help: "tokens that a tenant may take at once"})
	return NewTokenBucket(perSecond, burst)
}

// Admit takes the request's tokens, or says when they will be there.
func (p *TokenBucket) Admit(a *Ask) Verdict {
	need := tokensOf(a)
	p.mu.Lock()
	defer p.mu.Unlock()
	b, known := p.buckets[a.Tenant]
	if !known {
		p.makeRoom(a.Now)
		b = bucket{p.burst, a.Now}
	}
	if since := a.Now.Sub(b.at); since > 0 { // requests come in another order than their times
		b.tokens = min(p.burst, b.tokens+p.perSecond*since.Seconds())
		b.at = a.Now
	}
	missing := min(need, p.burst) - b.tokens
	if missing <= 0 {
		b.tokens -= need
	}
	p.buckets[a.Tenant] = b
	if missing > 0 {
		wait := time.Duration(math.Ceil(missing/p.perSecond*1000)) * time.Millisecond
		return Verdict{Action: Reject, RetryAfter: wait, Reason: "tenant_rate"}
	}
	return Verdict{Priority: priority(a.Class)}
}

// tokensOf is what a request is expected to take.
func tokensOf(a *Ask) float64 {
	if a.Output < 0 {
		return float64(a.Prompt) + usualOutput
	}
	return float64(a.Prompt + a.Output)
}

// looked bounds how many are looked at to find one to forget.
const looked = 64

// makeRoom forgets some buckets that are full by now or, where there is none among
// those it looks at, the one of them that has not been asked for the longest: its
// tenant has a full one again.
func (p *TokenBucket) makeRoom(now time.Time) {
	if len(p.buckets) < maxTenants {
		return
	}
	var oldest uint64
	var since time.Time
	seen := 0
	for tenant, b := range p.buckets {
		if b.tokens+p.perSecond*now.Sub(b.at).Seconds() >= p.burst {
			delete(p.buckets, tenant)
		} else if since.IsZero() || b.at.Before(since) {
			oldest, since = tenant, b.at
		}
		if seen++; seen == looked {
			break
		}
	}
	if len(p.buckets) >= maxTenants {
		delete(p.buckets, oldest)
	}
}
