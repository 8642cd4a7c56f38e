package history

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// Holders is how many holders a quota's history can tell apart.
const Holders = 8

// QuotaKind is what is done to a tenant's quota.
type QuotaKind uint8

// The operations on quotas.
const (
	SetLimit QuotaKind = iota
	Grant              // up to Tokens
	Return             // up to Tokens
	ReadQuota
)

// QuotaOp is an operation on one tenant's quota.
type QuotaOp struct {
	Kind   QuotaKind
	Holder int // below Holders
	Window uint64
	Tokens int64 // asked, returned, or the limit
}

// QuotaAnswer is what the client was told.
type QuotaAnswer struct {
	Unknown bool // nothing else is known
	Missing bool // the tenant has no quota
	Stale   bool // the window is over
	Tokens  int64
	// Window and Grants are those of a read.
	Window uint64
	Grants [Holders]int64
}

// String is for histories that are told.
func (o QuotaOp) String() string {
	names := [...]string{"limit", "grant", "return", "read"}
	return fmt.Sprintf("%s holder %d window %d: %d", names[o.Kind], o.Holder, o.Window, o.Tokens)
}

// String is for histories that are told.
func (a QuotaAnswer) String() string {
	switch {
	case a.Unknown:
		return "unknown"
	case a.Missing:
		return "no quota"
	case a.Stale:
		return "window is over"
	}
	return fmt.Sprintf("%d (window %d, %v)", a.Tokens, a.Window, a.Grants)
}

// tenant is the state of one quota.
type tenant struct {
	set    bool
	limit  int64
	window uint64
	grants [Holders]int64
}

func (t tenant) left() int64 {
	left := t.limit
	for _, g := range t.grants {
		left -= g
	}
	return max(left, 0)
}

var quotas = porcupine.Model{
	Init: func() any { return tenant{} },
	Step: func(state, input, output any) (bool, any) {
		got := output.(QuotaAnswer)
		next, want := stepQuota(state.(tenant), input.(QuotaOp))
		return got.Unknown || got == want, next
	},
}

// stepQuota gives the state that follows, and the answer that is right.
func stepQuota(t tenant, op QuotaOp) (tenant, QuotaAnswer) {
	switch {
	case op.Kind == SetLimit:
		t.set, t.limit = true, op.Tokens
		return t, QuotaAnswer{}
	case !t.set:
		return t, QuotaAnswer{Missing: true}
	case op.Kind == ReadQuota:
		return t, QuotaAnswer{Window: t.window, Grants: t.grants}
	case op.Window < t.window:
		return t, QuotaAnswer{Stale: true}
	}
	if op.Kind == Return {
		if op.Window > t.window {
			return t, QuotaAnswer{}
		}
		n := min(op.Tokens, t.grants[op.Holder])
		t.grants[op.Holder] -= n
		return t, QuotaAnswer{Tokens: n}
	}
	if op.Window > t.window {
		t.window, t.grants = op.Window, [Holders]int64{}
	}
	n := min(op.Tokens, t.left())
	t.grants[op.Holder] += n
	return t, QuotaAnswer{Tokens: n}
}
