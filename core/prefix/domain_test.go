package prefix

import "testing"

func TestScopesDoNotMeet(t *testing.T) {
	scopes := []Scope{
		{},
		{Base: "m"},
		{Base: "m", Compat: "c"},
		{Base: "m", Compat: "c", Salt: "s"},
		{Base: "m", Compat: "c", Adapter: "s"},
		{Base: "m", Compat: "c", Adapter: "s", Salt: "s"},
		{Base: "m", Compat: "c", Salt: "ss"},
		{Base: "m", Compat: "cs"},
	}
	seen := map[Hash]Scope{}
	for _, s := range scopes {
		if other, dup := seen[s.Seed()]; dup {
			t.Errorf("%+v and %+v start from one hash", s, other)
		}
		seen[s.Seed()] = s
	}
	if got := (Scope{Base: "m", Compat: "c", Salt: "s"}).Seed(); got != Domain("m:c", "s") {
		t.Errorf("the domain's name changed: %x", got)
	}
}
