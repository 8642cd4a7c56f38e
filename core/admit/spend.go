package admit

import (
	"context"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/unit"
)

// Granter is the cluster's ledger of quotas as a gateway sees it.
type Granter interface {
	// Limited reports the tenant's tokens per window, and whether it has a quota.
	Limited(tenant string) (limit unit.Tokens, limited bool)
	// Grant gets up to tokens more of a window, and says how many; none left is 0
	// without an error. It may wait until ctx ends.
	Grant(ctx context.Context, tenant string, window uint64, tokens unit.Tokens) (granted unit.Tokens, err error)
}

// SpenderConfig sets up a Spender. Zero fields take their defaults.
type SpenderConfig struct {
	// Window is how long a quota lasts; default 1 min. All gateways must have the
	// same.
	Window time.Duration
	// Patience is how long a request waits for a grant; default 250 ms.
	Patience time.Duration
	// Share is the part of a limit that is asked for at once, at least; default 1/32.
	// What a gateway holds and does not spend nobody else can in that window.
	Share float64
}

// Spender spends quotas that are the cluster's: tokens are reserved before a request
// is served, out of what this gateway has been granted of the present window, and
// settled after. While the ledger cannot be reached a tenant is let in on credit: a
// quota must not turn the planners' outage into one of the service. It is safe for
// concurrent use.
type Spender struct {
	cfg     SpenderConfig
	granter Granter
	clock   clock.Clock

	mu    sync.Mutex
	purse map[string]*purse // of tenants that have a quota
}

// purse is what this gateway holds of one tenant's quota.
type purse struct {
	window uint64
	left   unit.Tokens   // may be negative: outputs were longer than expected
	asking chan struct{} // closed when the grant that is being asked for is there; nil without one
	empty  bool          // the ledger had no more in this window
}

// NewSpender makes a spender that holds nothing yet.
func NewSpender(c SpenderConfig, g Granter, clk clock.Clock) *Spender {
	if c.Window <= 0 {
		c.Window = time.Minute
	}
	if c.Patience <= 0 {
		c.Patience = 250 * time.Millisecond
	}
	if !(c.Share > 0 && c.Share <= 1) {
		c.Share = 1. / 32
	}
	return &Spender{cfg: c, granter: g, clock: clk, purse: map[string]*purse{}}
}

// Reservation is a request's part of a quota. The zero value reserves nothing.
type Reservation struct {
	spender *Spender
	tenant  string
	window  uint64
	tokens  unit.Tokens
	Credit  bool // the ledger could not be reached
}

// Reserve takes tokens of the tenant's quota. ok is false when this window has no
// more; retry is then when the next begins.
func (s *Spender) Reserve(ctx context.Context, tenant string, tokens unit.Tokens) (r Reservation, retry time.Duration, ok bool) {
	limit, limited := s.granter.Limited(tenant)
	if !limited {
		return Reservation{}, 0, true
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Patience)
	defer cancel()
	for {
		now := s.clock.Now()
		r := Reservation{spender: s, tenant: tenant, window: s.window(now), tokens: tokens}
		asking, ask, got := s.take(&r, limit)
		switch {
		case got:
			return r, 0, true
		case asking == nil && !ask:
			return Reservation{}, s.untilNext(now), false
		case ask:
			if err := s.ask(ctx, &r, limit); err != nil {
				r.Credit = true
				s.settle(tenant, r.window, -tokens)
				return r, 0, true
			}
		default:
			select {
			case <-asking:
			case <-ctx.Done():
				r.Credit = true
				s.settle(tenant, r.window, -tokens)
				return r, 0, true
			}
		}
	}
}

// take pays out of the purse. Otherwise it says whom to wait for, or that the caller
// is to ask; neither means that there is no more.
func (s *Spender) take(r *Reservation, limit unit.Tokens) (asking chan struct{}, ask, got bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.open(r.tenant, r.window)
	switch {
	case p.left >= r.tokens || p.left > 0 && p.empty:
		// The last tokens pay for a request that is larger: what it takes beyond them
		// is what the window gives too much, once for each gateway.
		p.left -= r.tokens
		return nil, false, true
	case p.empty || limit <= 0:
		return nil, false, false
	case p.asking != nil:
		return p.asking, false, false
	default:
		p.asking = make(chan struct{})
		return nil, true, false
	}
}

// ask gets a grant for the purse, which the caller has marked: what the request lacks,
// debts included, so that it takes one entry of the log.
func (s *Spender) ask(ctx context.Context, r *Reservation, limit unit.Tokens) error {
	s.mu.Lock()
	lacks := r.tokens - s.open(r.tenant, r.window).left
	s.mu.Unlock()
	want := max(lacks, unit.Tokens(float64(limit)*s.cfg.Share), 1)
	granted, err := s.granter.Grant(ctx, r.tenant, r.window, want)
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.open(r.tenant, max(r.window, s.windowOf(r.tenant)))
	if p.asking != nil {
		close(p.asking)
		p.asking = nil
	}
	if err != nil {
		return err
	}
	if p.window == r.window {
		p.left += granted
		p.empty = granted < want
	}
	return nil
}

// windowOf is the window of the tenant's purse. The lock is held.
func (s *Spender) windowOf(tenant string) uint64 {
	if p := s.purse[tenant]; p != nil {
		return p.window
	}
	return 0
}

// open is the tenant's purse for a window; a new window begins empty. The lock is
// held.
func (s *Spender) open(tenant string, window uint64) *purse {
	p := s.purse[tenant]
	if p == nil {
		s.forget(window)
		p = &purse{window: window}
		s.purse[tenant] = p
	}
	if window > p.window {
		p.window, p.left, p.empty = window, min(p.left, 0), false
	}
	return p
}

// forget drops purses of windows that are over, where there are many. The lock is
// held. Tenants with a quota are bounded by the ledger.
func (s *Spender) forget(window uint64) {
	if len(s.purse) < maxTenants {
		return
	}
	for tenant, p := range s.purse {
		if p.window < window && p.asking == nil {
			delete(s.purse, tenant)
		}
	}
}

// Settle corrects what was reserved to what was used. It is called once.
func (r Reservation) Settle(used unit.Tokens) {
	if r.spender != nil {
		r.spender.settle(r.tenant, r.window, r.tokens-used)
	}
}

// settle gives back to the purse, if its window is still the present one; what was
// used too much counts in the next one too.
func (s *Spender) settle(tenant string, window uint64, back unit.Tokens) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.purse[tenant]
	if p == nil {
		return
	}
	if p.window == window || back < 0 {
		p.left += back
	}
}

// Left is what this gateway holds of the tenant's quota now.
func (s *Spender) Left(tenant string) (tokens unit.Tokens, limited bool) {
	if _, limited = s.granter.Limited(tenant); !limited {
		return 0, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.purse[tenant]; p != nil {
		tokens = p.left
	}
	return tokens, true
}

func (s *Spender) window(now time.Time) uint64 {
	return uint64(max(now.UnixNano(), 0)) / uint64(s.cfg.Window)
}

// untilNext is the time to the next window.
func (s *Spender) untilNext(now time.Time) time.Duration {
	return s.cfg.Window - time.Duration(max(now.UnixNano(), 0))%s.cfg.Window
}
