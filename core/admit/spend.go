package admit

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/unit"
)

// Granter is the cluster's ledger of quotas as a gateway sees it.
type Granter interface {
	// Quota is the tenant's, and whether it has one.
	Quota(tenant string) (q Quota, limited bool)
	// Grant gets up to tokens more of a window, and says how many; none left is 0
	// without an error. It may wait until ctx ends. An error that wraps ErrClock says
	// that the window is not the present one for the ledger.
	Grant(ctx context.Context, tenant string, window uint64, tokens unit.Tokens) (granted unit.Tokens, err error)
}

// Quota is what a ledger says of a tenant.
type Quota struct {
	Limit  unit.Tokens // per window
	Window uint64      // the newest that anybody was granted something of
}

// ErrClock means that a window is another than the ledger's: somebody's clock is off.
var ErrClock = errors.New("not the present window of the quota")

// Why a request is let in on credit.
const (
	CreditLedger = "tenant_quota" // the ledger could not be reached in time
	CreditClock  = "clock"        // the ledger's window is too far from this gateway's clock
)

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

// How long the ledger is not asked after it could not be reached: the first pause, which
// doubles, and the longest.
const (
	firstPause   = time.Second
	longestPause = 10 * time.Second
)

// Spender spends quotas that are the cluster's: tokens are reserved before a request
// is served, out of what this gateway has been granted of the present window, and
// settled after. While the ledger cannot be reached a tenant is let in on credit: a
// quota must not turn the planners' outage into one of the service; the ledger is then
// left alone for a moment, in which nobody waits and nothing is limited. What was let in
// is owed, and of that no more than a window's limit in the next: however long the outage
// was, it shuts nobody out for hours. The same holds for
// a clock that is wrong, here or elsewhere: a window that is ahead by one is joined,
// and where they are further apart nothing is refused and nothing is owed. It is safe
// for concurrent use.
type Spender struct {
	cfg     SpenderConfig
	granter Granter
	clock   clock.Clock

	mu    sync.Mutex
	purse map[string]*purse // of tenants that have a quota
	down  outage
}

// outage is that of the ledger. The zero value is none.
type outage struct {
	since time.Time
	pause time.Duration // 0 without an outage
	asked bool          // somebody tries whether it is over
}

// lasts reports whether it is too early to ask again. A clock that is set back does not
// make it longer.
func (o *outage) lasts(now time.Time) bool {
	return o.pause > 0 && (o.asked || !now.Before(o.since) && now.Sub(o.since) < o.pause)
}

// note takes in how asking went. What was asked before the outage was known makes it no
// longer.
func (o *outage) note(now time.Time, err error) {
	switch {
	case err == nil || errors.Is(err, ErrClock):
		*o = outage{}
	case o.pause == 0:
		*o = outage{since: now, pause: firstPause}
	case o.asked:
		*o = outage{since: now, pause: min(2*o.pause, longestPause)}
	}
}

// purse is what this gateway holds of one tenant's quota.
type purse struct {
	window uint64
	left   unit.Tokens   // may be negative: outputs were longer than expected
	owed   unit.Tokens   // part of what is missing that came from earlier windows
	credit unit.Tokens   // part of what is missing that was let in on credit
	asking chan struct{} // closed when the grant that is being asked for is there; nil without one
	empty  bool          // the ledger had no more in this window, under this limit
	limit  unit.Tokens   // the quota's, when the purse was last opened
	off    bool          // the ledger does not take this window for the present one
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
	Credit  string // why it was let in without a grant, a word; empty if it has one
}

// Limit is the tenant's quota in a window, and whether it has one.
func (s *Spender) Limit(tenant string) (limit unit.Tokens, limited bool) {
	q, limited := s.granter.Quota(tenant)
	return q.Limit, limited
}

// Reserve takes tokens of the tenant's quota. ok is false when this window has no
// more, and retry is then when the next begins; it is 0 when no window would ever have
// so many.
func (s *Spender) Reserve(ctx context.Context, tenant string, tokens unit.Tokens) (r Reservation, retry time.Duration, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Patience)
	defer cancel()
	for {
		q, limited := s.granter.Quota(tenant)
		if !limited {
			return Reservation{}, 0, true
		}
		if tokens > q.Limit {
			return Reservation{}, 0, false
		}
		now := s.clock.Now()
		r := Reservation{spender: s, tenant: tenant, tokens: tokens}
		step, asking := s.take(&r, now, q)
		switch step {
		case taken:
			return r, 0, true
		case spent:
			return Reservation{}, s.untilNext(now), false
		case astray:
			return Reservation{Credit: CreditClock}, 0, true
		case lent:
			return r.onCredit(), 0, true
		case asks:
			if err := s.ask(ctx, &r, q.Limit); err != nil && !errors.Is(err, ErrClock) {
				return r.onCredit(), 0, true
			}
		case waits:
			select {
			case <-asking:
			case <-ctx.Done():
				return r.onCredit(), 0, true
			}
		}
	}
}

// onCredit is r where no grant came in time: its tokens are owed.
func (r Reservation) onCredit() Reservation {
	r.Credit = CreditLedger
	r.spender.settle(&r, -r.tokens)
	return r
}

// step is what follows a look into the purse.
type step uint8

const (
	taken  step = iota // the request is paid
	spent              // there is no more
	astray             // the clocks do not agree
	lent               // the ledger cannot be reached, and is not asked for a moment
	asks               // the caller is to ask the ledger
	waits              // somebody does
)

// take pays out of the purse of the window that is the present one by our clock, or by
// the ledger, and notes it in r.
func (s *Spender) take(r *Reservation, now time.Time, q Quota) (_ step, asking chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.window(now)
	if q.Window > own+1 {
		return astray, nil
	}
	r.window = max(own, q.Window)
	if p := s.purse[r.tenant]; p != nil && p.window == own+1 {
		r.window = p.window // clocks that are set back do not bring a window back
	}
	p := s.open(r.tenant, r.window)
	p.follow(q.Limit, s.share(q.Limit))
	switch {
	case p.left >= r.tokens || p.left > 0 && p.empty:
		// The last tokens pay for a request that is larger: what it takes beyond them
		// is what the window gives too much, once for each gateway: a purse in debt
		// lets nobody in.
		p.left -= r.tokens
		return taken, nil
	case p.off:
		return astray, nil
	case p.empty:
		return spent, nil
	case s.down.lasts(now):
		return lent, nil
	case p.asking != nil:
		return waits, p.asking
	default:
		s.down.asked = s.down.pause > 0
		p.asking = make(chan struct{})
		return asks, nil
	}
}

// follow has the purse be one of a quota of limit. After another limit the ledger may
// have more; one that is lower takes what is left but for a share of it.
func (p *purse) follow(limit, share unit.Tokens) {
	if limit < p.limit {
		p.left = min(p.left, share)
	}
	p.empty = p.empty && limit == p.limit
	p.limit = limit
}

// share is what is asked for at once of a limit.
func (s *Spender) share(limit unit.Tokens) unit.Tokens {
	return unit.Tokens(float64(limit) * s.cfg.Share)
}

// ask gets a grant for the purse, which the caller has marked: what the request lacks,
// debts included, so that it takes one entry of the log. It has its whole patience,
// whoever has gone meanwhile: what the log grants is the purse's, and a client that
// leaves says nothing of the ledger.
func (s *Spender) ask(ctx context.Context, r *Reservation, limit unit.Tokens) error {
	s.mu.Lock()
	p := s.purse[r.tenant] // stays while it is marked
	lacks := r.tokens - p.left
	s.mu.Unlock()
	want := max(lacks, s.share(limit), 1)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Patience)
	defer cancel()
	granted, err := s.granter.Grant(ctx, r.tenant, r.window, want)
	s.mu.Lock()
	defer s.mu.Unlock()
	close(p.asking)
	p.asking = nil
	s.down.note(s.clock.Now(), err)
	if p.window != r.window {
		return err
	}
	p.off = errors.Is(err, ErrClock)
	if err == nil {
		p.left += granted
		p.credit = min(p.credit, p.debt())
		p.empty = granted < want && p.limit == limit
	}
	return err
}

// open is the tenant's purse for a window; another window begins empty, with the debts
// of those before. The lock is held.
func (s *Spender) open(tenant string, window uint64) *purse {
	p := s.purse[tenant]
	if p == nil {
		s.forget(window)
		p = &purse{window: window}
		s.purse[tenant] = p
	}
	if window != p.window {
		forgiven := max(p.credit-p.limit, 0)
		debt := max(p.debt()-forgiven, 0)
		*p = purse{
			window: window, left: -debt, owed: debt, credit: min(p.credit-forgiven, debt),
			asking: p.asking, limit: p.limit,
		}
	}
	return p
}

// debt is what is missing in the purse.
func (p *purse) debt() unit.Tokens { return max(-p.left, 0) }

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
		r.spender.settle(&r, r.tokens-used)
	}
}

// settle gives back to the purse. Of a window that is over it pays back no more than
// what is still owed from there; what was used too much counts in the present one.
func (s *Spender) settle(r *Reservation, back unit.Tokens) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.purse[r.tenant]
	if p == nil {
		return
	}
	if p.window != r.window {
		back = min(back, p.owed)
		p.owed -= back
	}
	p.left += back
	if r.Credit != "" {
		p.credit -= back
	}
	p.credit = max(min(p.credit, p.debt()), 0)
}

// Left is what this gateway holds of the tenant's quota now.
func (s *Spender) Left(tenant string) (tokens unit.Tokens, limited bool) {
	if _, limited := s.Limit(tenant); !limited {
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
