package admit

import (
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/unit"
)

func unitTokens(n int64) unit.Tokens { return unit.Tokens(n) }

func TestTenantsBalance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tenants := NewTenants()
		line := NewLobby(clock.Real{}, 0).NewLine(nil)
		type visit struct {
			v    *Visit
			spot *Spot
		}
		var open []visit
		t.Repeat(map[string]func(*rapid.T){
			"visit": func(t *rapid.T) {
				open = append(open, visit{v: tenants.Visit(rapid.Uint64Range(0, 5).Draw(t, "tenant"))})
			},
			"wait": func(t *rapid.T) {
				if i := pick(t, len(open)); i >= 0 && open[i].spot == nil {
					open[i].spot, _ = line.Join(rapid.Uint8().Draw(t, "priority"), open[i].v)
				}
			},
			"go on": func(t *rapid.T) {
				if i := pick(t, len(open)); i >= 0 && open[i].spot != nil {
					open[i].spot.Leave()
					open[i].spot = nil
				}
			},
			"serve": func(t *rapid.T) {
				if i := pick(t, len(open)); i >= 0 {
					open[i].v.Serve(10, 3, 4)
				}
			},
			"end": func(t *rapid.T) {
				if i := pick(t, len(open)); i >= 0 {
					if open[i].spot != nil {
						open[i].spot.Leave()
					}
					open[i].v.End()
					open[i].v.End()
					open = slices.Delete(open, i, i+1)
				}
			},
			"": func(t *rapid.T) {
				running, waiting := map[uint64]int{}, map[uint64]int{}
				for _, o := range open {
					if o.spot != nil {
						waiting[o.v.account.tenant]++
					} else {
						running[o.v.account.tenant]++
					}
				}
				active, least := 0, math.NaN()
				for tenant, a := range tenants.known {
					if a.running != running[tenant] || a.waiting != waiting[tenant] {
						t.Fatalf("tenant %d: %d and %d, want %d and %d", tenant, a.running, a.waiting, running[tenant], waiting[tenant])
					}
					if a.running+a.waiting > 0 {
						active++
						if !(a.service >= least) {
							least = a.service
						}
					}
				}
				if len(tenants.active) != active {
					t.Fatalf("%d active, want %d", len(tenants.active), active)
				}
				if got := tenants.least(); got != least && active > 0 {
					t.Fatalf("the least service is %v, want %v", got, least)
				}
				if got := tenants.least(); got != least && active > 0 {
					t.Fatalf("the least service is %v, want %v", got, least)
				}
			},
		})
		for _, o := range open {
			if o.spot != nil {
				o.spot.Leave()
			}
			o.v.End()
		}
	})
}

func pick(t *rapid.T, n int) int {
	if n == 0 {
		return -1
	}
	return rapid.IntRange(0, n-1).Draw(t, "at")
}

func TestServiceIsNotSavedUp(t *testing.T) {
	tenants := NewTenants()
	a := tenants.Visit(1)
	a.Serve(1000, 200, 100) // 800 + 20 + 200
	if s := a.Standing(); s.Service != 1020 || s.Least != 1020 {
		t.Errorf("%+v", s)
	}
	b := tenants.Visit(2)
	if s := b.Standing(); s.Service != 1020 {
		t.Errorf("a tenant that comes begins at %v, want the least of the active", s.Service)
	}
	b.End()
	a.Serve(100, 0, 0)
	b = tenants.Visit(2)
	if s := b.Standing(); s.Service != 1120 {
		t.Errorf("and coming back at %v", s.Service)
	}
	a.End()
	b.End()
	c := tenants.Visit(3)
	if s := c.Standing(); s.Service != 0 || s.Running != 1 {
		t.Errorf("alone: %+v", s)
	}
	c.End()
}

func TestTenantsAreBounded(t *testing.T) {
	tenants := NewTenants()
	for tenant := range uint64(2 * maxTenants) {
		tenants.Visit(tenant).End()
	}
	if len(tenants.known) > maxTenants {
		t.Errorf("%d are known", len(tenants.known))
	}
}

// The order: priority, then the tenant that was served least, then who came first;
// whoever has waited for long comes before all of them.
func TestWhoseTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tenants := NewTenants()
		line := NewLobby(clock.Real{}, 0).NewLine(nil)
		greedy, modest := tenants.Visit(1), tenants.Visit(2)
		greedy.Serve(5000, 0, 0)
		join := func(priority uint8, v *Visit) *Spot {
			s, err := line.Join(priority, v)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		old := join(0, tenants.Visit(3))
		time.Sleep(patience)
		spots := []*Spot{old}
		high := join(200, tenants.Visit(4))
		a, b := join(100, greedy), join(100, modest)
		c := join(100, tenants.Visit(2))
		spots = append(spots, high, b, c, a)
		for i, s := range spots {
			if !s.Front() {
				t.Errorf("the turn of %d has not come", i)
			}
			s.Leave()
		}
		if line.Len() != 0 {
			t.Errorf("%d left", line.Len())
		}
	})
}
