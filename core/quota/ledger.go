package quota

import (
	"cmp"
	"slices"

	"github.com/yardmaster/yardmaster/core/table"
	"github.com/yardmaster/yardmaster/core/unit"
)

// Bounds of a ledger. They belong to the entries of feature level 2 and cannot
// change within it: replicas would disagree about who was granted what.
const (
	MaxTenants = 4096
	MaxGrants  = 65536   // of all tenants together
	MaxTokens  = 1 << 50 // a limit's; all tenants' grants add up within 63 bits
)

// WindowSeconds is how long a window is: its number is the Unix time divided by this.
// All proposers and leaders must agree on it.
const WindowSeconds = 60

// Near reports whether windows are at most one apart, as those of nodes are whose clocks
// are in some order.
func Near(a, b uint64) bool { return max(a, b)-min(a, b) <= 1 }

// Outcome says what became of a change.
type Outcome uint8

// The outcomes.
const (
	Done    Outcome = iota // done, or already so
	Unknown                // the tenant has no quota
	Stale                  // the window is over
	Full                   // MaxTenants or MaxGrants is reached
	Refused                // a negative number, or no tokens at all
)

// Grant is what one holder has of a tenant's window.
type Grant struct {
	Holder string
	Tokens unit.Tokens // above zero
}

// Tenant is one tenant's quota. It is immutable.
type Tenant struct {
	Limit  unit.Tokens // tokens per window
	Window uint64      // the newest that anybody asked for
	Grants []Grant     // of Window, by holder; do not modify
	// Granted is the sum of Grants. It exceeds Limit only while a limit that was
	// lowered in the course of the window waits for returns or the next window.
	Granted unit.Tokens
}

// Left is how much can be granted in the present window.
func (t *Tenant) Left() unit.Tokens { return max(t.Limit-t.Granted, 0) }

// Of is what holder has.
func (t *Tenant) Of(holder string) unit.Tokens {
	if i, ok := t.find(holder); ok {
		return t.Grants[i].Tokens
	}
	return 0
}

func (t *Tenant) find(holder string) (int, bool) {
	return slices.BinarySearchFunc(t.Grants, holder, func(g Grant, holder string) int { return cmp.Compare(g.Holder, holder) })
}

// with is t where holder has tokens; none takes its grant away.
func (t *Tenant) with(holder string, tokens unit.Tokens) *Tenant {
	next := *t
	next.Granted += tokens - t.Of(holder)
	i, found := t.find(holder)
	rest := t.Grants[i:]
	if found {
		rest = rest[1:]
	}
	if tokens == 0 {
		next.Grants = slices.Concat(t.Grants[:i], rest)
		return &next
	}
	next.Grants = append(make([]Grant, 0, len(t.Grants)+1), t.Grants[:i]...)
	next.Grants = append(append(next.Grants, Grant{holder, tokens}), rest...)
	return &next
}

// at is t in window, which is not older than its own.
func (t *Tenant) at(window uint64) *Tenant {
	if window == t.Window {
		return t
	}
	return &Tenant{Limit: t.Limit, Window: window}
}

// Ledger is all tenants' quotas. It is an immutable value; the zero value is
// empty.
type Ledger struct {
	tenants table.Table[*Tenant]
	grants  int // of all tenants
}

// Same reports whether l and other are one ledger: no change lies between them.
func (l Ledger) Same(other Ledger) bool { return l.tenants.Same(other.tenants) }

// Len is the number of tenants that have a quota.
func (l Ledger) Len() int { return l.tenants.Len() }

// Tenants lists the quotas by tenant. Do not modify it.
func (l Ledger) Tenants() []table.Row[*Tenant] { return l.tenants.Rows() }

// Tenant returns the tenant's quota, and whether it has one.
func (l Ledger) Tenant(name string) (*Tenant, bool) { return l.tenants.Get(name) }

// Set sets a tenant's limit from now on. What is granted stays granted, also
// beyond a limit that was lowered.
func (l Ledger) Set(tenant string, limit unit.Tokens) (Ledger, Outcome) {
	old, exists := l.tenants.Get(tenant)
	switch {
	case limit < 0 || int64(limit) > MaxTokens:
		return l, Refused
	case !exists && l.tenants.Len() >= MaxTenants:
		return l, Full
	case !exists:
		old = &Tenant{}
	case old.Limit == limit:
		return l, Done
	}
	next := *old
	next.Limit = limit
	return l.put(tenant, old, &next), Done
}

// Drop ends a tenant's quota with all that is granted of it. It is also how a
// window that was named by mistake, far in the future, is forgotten.
func (l Ledger) Drop(tenant string) (Ledger, Outcome) {
	old, exists := l.tenants.Get(tenant)
	if !exists {
		return l, Done
	}
	return Ledger{tenants: l.tenants.Without(tenant), grants: l.grants - len(old.Grants)}, Done
}

// Grant gives a holder up to tokens more of the tenant's window: as many as are
// left, perhaps none.
func (l Ledger) Grant(tenant, holder string, window uint64, tokens unit.Tokens) (_ Ledger, granted unit.Tokens, _ Outcome) {
	old, exists := l.tenants.Get(tenant)
	switch {
	case tokens <= 0:
		return l, 0, Refused
	case !exists:
		return l, 0, Unknown
	case window < old.Window:
		return l, 0, Stale
	}
	t := old.at(window)
	granted = min(tokens, t.Left())
	has := t.Of(holder)
	if granted > 0 && has == 0 && l.grants-len(old.Grants)+len(t.Grants) >= MaxGrants {
		return l, 0, Full
	}
	if granted > 0 {
		t = t.with(holder, has+granted)
	}
	return l.put(tenant, old, t), granted, Done
}

// Return takes up to tokens back from a holder, who has not spent them and
// never will. A window that is over has nothing to return to.
func (l Ledger) Return(tenant, holder string, window uint64, tokens unit.Tokens) (_ Ledger, returned unit.Tokens, _ Outcome) {
	old, exists := l.tenants.Get(tenant)
	switch {
	case tokens <= 0:
		return l, 0, Refused
	case !exists:
		return l, 0, Unknown
	case window < old.Window:
		return l, 0, Stale
	case window > old.Window: // nothing was granted in it
		return l, 0, Done
	}
	has := old.Of(holder)
	if returned = min(tokens, has); returned == 0 {
		return l, 0, Done
	}
	return l.put(tenant, old, old.with(holder, has-returned)), returned, Done
}

// End takes everything back from a holder that is gone, and says how much.
func (l Ledger) End(holder string) (_ Ledger, returned unit.Tokens) {
	next := l
	next.tenants = l.tenants.Edit(func(_ string, t *Tenant) *Tenant {
		has := t.Of(holder)
		if has == 0 {
			return t
		}
		returned += has
		next.grants--
		return t.with(holder, 0)
	})
	if returned == 0 {
		return l, 0
	}
	return next, returned
}

// Load is l with one more tenant as a snapshot tells it, behind all others. It
// computes t.Granted. ok is false where no ledger can be so.
func (l Ledger) Load(tenant string, t Tenant) (_ Ledger, ok bool) {
	t.Granted = 0
	for i, g := range t.Grants {
		if g.Tokens <= 0 || int64(g.Tokens) > MaxTokens || (i > 0 && t.Grants[i-1].Holder >= g.Holder) {
			return l, false
		}
		t.Granted += g.Tokens
		if int64(t.Granted) > MaxTokens {
			return l, false
		}
	}
	grants := l.grants + len(t.Grants)
	if t.Limit < 0 || int64(t.Limit) > MaxTokens || grants > MaxGrants || l.tenants.Len() >= MaxTenants {
		return l, false
	}
	tenants, ok := l.tenants.Append(tenant, &t)
	return Ledger{tenants: tenants, grants: grants}, ok
}

// put is l with a tenant's quota in place of the old one.
func (l Ledger) put(tenant string, old, t *Tenant) Ledger {
	if t == old {
		return l
	}
	return Ledger{tenants: l.tenants.With(tenant, t), grants: l.grants + len(t.Grants) - len(old.Grants)}
}
