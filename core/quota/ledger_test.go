package quota

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/unit"
)

// plain is a tenant as one would write it down without care for sharing.
type plain struct {
	limit  unit.Tokens
	window uint64
	has    map[string]unit.Tokens
	// highest is the largest limit in force since the window began.
	highest unit.Tokens
}

func (p *plain) sum() (n unit.Tokens) {
	for _, has := range p.has {
		n += has
	}
	return n
}

func (p *plain) enter(window uint64) {
	if window > p.window {
		p.window, p.has, p.highest = window, map[string]unit.Tokens{}, p.limit
	}
}

type world struct {
	ledger  Ledger
	tenants map[string]*plain
}

var (
	tenantNames = rapid.SampledFrom([]string{"t1", "t2", "t3"})
	holderNames = rapid.SampledFrom([]string{"g1", "g2", "g3"})
	windows     = rapid.Uint64Range(0, 6)
	amounts     = rapid.IntRange(-2, 120)
)

func (w *world) set(t *rapid.T) {
	name, limit := tenantNames.Draw(t, "tenant"), unit.Tokens(amounts.Draw(t, "limit"))
	next, out := w.ledger.Set(name, limit)
	w.ledger = next
	if limit < 0 {
		w.expect(t, out, Refused)
		return
	}
	w.expect(t, out, Done)
	p := w.tenants[name]
	if p == nil {
		p = &plain{has: map[string]unit.Tokens{}}
		w.tenants[name] = p
	}
	p.limit, p.highest = limit, max(limit, p.highest)
}

func (w *world) grant(t *rapid.T) {
	name, holder, window := tenantNames.Draw(t, "tenant"), holderNames.Draw(t, "holder"), windows.Draw(t, "window")
	tokens := unit.Tokens(amounts.Draw(t, "tokens"))
	next, granted, out := w.ledger.Grant(name, holder, window, tokens)
	w.ledger = next
	p := w.tenants[name]
	switch {
	case tokens <= 0:
		w.expect(t, out, Refused)
	case p == nil:
		w.expect(t, out, Unknown)
	case window < p.window:
		w.expect(t, out, Stale)
	default:
		w.expect(t, out, Done)
		p.enter(window)
		if want := min(tokens, max(p.limit-p.sum(), 0)); granted != want {
			t.Fatalf("granted %d, want %d", granted, want)
		}
		p.has[holder] += granted
		if granted > 0 && p.sum() > p.limit {
			t.Fatalf("a grant went beyond the limit: %d of %d", p.sum(), p.limit)
		}
		return
	}
	if granted != 0 {
		t.Fatalf("%v, and granted %d", out, granted)
	}
}

func (w *world) giveBack(t *rapid.T) {
	name, holder, window := tenantNames.Draw(t, "tenant"), holderNames.Draw(t, "holder"), windows.Draw(t, "window")
	tokens := unit.Tokens(amounts.Draw(t, "tokens"))
	next, returned, out := w.ledger.Return(name, holder, window, tokens)
	w.ledger = next
	var want unit.Tokens
	switch p := w.tenants[name]; {
	case tokens <= 0:
		w.expect(t, out, Refused)
	case p == nil:
		w.expect(t, out, Unknown)
	case window < p.window:
		w.expect(t, out, Stale)
	case window == p.window:
		want = min(tokens, p.has[holder])
		p.has[holder] -= want
		fallthrough
	default:
		w.expect(t, out, Done)
	}
	if returned != want {
		t.Fatalf("returned %d, want %d", returned, want)
	}
}

func (w *world) end(t *rapid.T) {
	holder := holderNames.Draw(t, "holder")
	next, returned := w.ledger.End(holder)
	w.ledger = next
	var want unit.Tokens
	for _, p := range w.tenants {
		want += p.has[holder]
		delete(p.has, holder)
	}
	if returned != want {
		t.Fatalf("the end returned %d, want %d", returned, want)
	}
}

func (w *world) drop(t *rapid.T) {
	name := tenantNames.Draw(t, "tenant")
	next, out := w.ledger.Drop(name)
	w.ledger = next
	w.expect(t, out, Done)
	delete(w.tenants, name)
}

func (w *world) expect(t *rapid.T, got, want Outcome) {
	if got != want {
		t.Fatalf("outcome %d, want %d", got, want)
	}
}

func (w *world) check(t *rapid.T) {
	if w.ledger.Len() != len(w.tenants) {
		t.Fatalf("%d tenants, want %d", w.ledger.Len(), len(w.tenants))
	}
	grants := 0
	for name, p := range w.tenants {
		got, ok := w.ledger.Tenant(name)
		if !ok || got.Limit != p.limit || got.Window != p.window || got.Granted != p.sum() {
			t.Fatalf("%s: %+v, want %+v", name, got, p)
		}
		if got.Granted > p.highest {
			t.Fatalf("%s: %d granted, the limit was never above %d in this window", name, got.Granted, p.highest)
		}
		for holder, has := range p.has {
			if got.Of(holder) != has {
				t.Fatalf("%s has %d of %s, want %d", holder, got.Of(holder), name, has)
			}
		}
		for _, g := range got.Grants {
			if g.Tokens <= 0 {
				t.Fatalf("%s: empty grant %+v", name, g)
			}
		}
		grants += len(got.Grants)
	}
	if grants != w.ledger.grants {
		t.Fatalf("%d grants counted, %d are there", w.ledger.grants, grants)
	}
}

// rows copies a ledger deeply, to compare later.
func rows(l Ledger) (out []Tenant) {
	for _, row := range l.Tenants() {
		t := *row.Value
		t.Grants = slices.Clone(t.Grants)
		out = append(out, t)
	}
	return out
}

func TestLedgerMatchesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{tenants: map[string]*plain{}}
		var old Ledger
		var oldRows []Tenant
		t.Repeat(map[string]func(*rapid.T){
			"set": w.set, "grant": w.grant, "grant more": w.grant, "return": w.giveBack, "end": w.end, "drop": w.drop,
			"hold": func(*rapid.T) { old, oldRows = w.ledger, rows(w.ledger) },
			"load": func(t *rapid.T) {
				var back Ledger
				for _, row := range w.ledger.Tenants() {
					next, ok := back.Load(row.Key, *row.Value)
					if !ok {
						t.Fatalf("%s does not load: %+v", row.Key, row.Value)
					}
					back = next
				}
				w.ledger = back
			},
			"": func(t *rapid.T) {
				w.check(t)
				if diff := cmp.Diff(oldRows, rows(old), cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("an old ledger changed: %s", diff)
				}
			},
		})
	})
}

func TestLedgerIsBounded(t *testing.T) {
	var l Ledger
	for i := range MaxTenants {
		next, ok := l.Load(fmt.Sprintf("%05d", i), Tenant{Limit: 1})
		if !ok {
			t.Fatal(i)
		}
		l = next
	}
	if _, out := l.Set("one more", 1); out != Full {
		t.Errorf("one tenant more: %d", out)
	}
	if _, ok := l.Load("one more", Tenant{}); ok {
		t.Error("one tenant more was loaded")
	}
	if _, out := l.Set("00007", 9); out != Done {
		t.Errorf("one of the tenants: %d", out)
	}

	big := Tenant{Limit: MaxTokens, Window: 3}
	for i := range MaxGrants {
		big.Grants = append(big.Grants, Grant{fmt.Sprintf("%06d", i), 1})
	}
	l, ok := Ledger{}.Load("t", big)
	if !ok {
		t.Fatal("not a ledger")
	}
	if _, granted, out := l.Grant("t", "more", 3, 1); out != Full || granted != 0 {
		t.Errorf("one grant more: %d, %d", granted, out)
	}
	if _, granted, out := l.Grant("t", "000007", 3, 1); out != Done || granted != 1 {
		t.Errorf("more for a holder: %d, %d", granted, out)
	}
	if next, granted, out := l.Grant("t", "more", 4, 1); out != Done || granted != 1 || next.grants != 1 {
		t.Errorf("a new window: %d, %d", granted, out)
	}
}

func TestLoadRefuses(t *testing.T) {
	for name, bad := range map[string]Tenant{
		"a negative limit":  {Limit: -1},
		"a limit too large": {Limit: MaxTokens + 1},
		"an empty grant":    {Grants: []Grant{{"a", 0}}},
		"a negative grant":  {Grants: []Grant{{"a", -1}}},
		"disorder":          {Grants: []Grant{{"b", 1}, {"a", 1}}},
		"twice":             {Grants: []Grant{{"a", 1}, {"a", 1}}},
		"too much":          {Grants: []Grant{{"a", MaxTokens}, {"b", MaxTokens}}},
	} {
		if _, ok := (Ledger{}).Load("t", bad); ok {
			t.Errorf("%s was loaded", name)
		}
	}
	l, _ := Ledger{}.Load("b", Tenant{})
	if _, ok := l.Load("a", Tenant{}); ok {
		t.Error("tenants out of order were loaded")
	}
}
