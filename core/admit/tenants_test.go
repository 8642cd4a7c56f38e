package admit

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
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

// ledger is a Granter of one tenant.
type ledger struct {
	limit unit.Tokens
	mu    sync.Mutex
	given map[uint64]unit.Tokens
	calls atomic.Int32
	down  atomic.Bool
}

func (l *ledger) Limited(tenant string) (unit.Tokens, bool) { return l.limit, tenant == "limited" }

func (l *ledger) Grant(ctx context.Context, _ string, window uint64, tokens unit.Tokens) (unit.Tokens, error) {
	l.calls.Add(1)
	if l.down.Load() {
		<-ctx.Done()
		return 0, errors.New("no leader")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	granted := min(tokens, l.limit-l.given[window])
	l.given[window] += granted
	return granted, nil
}

func TestSpender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Minute - time.Duration(time.Now().UnixNano())%time.Minute) // a window begins
		l := &ledger{limit: 1000, given: map[uint64]unit.Tokens{}}
		s := NewSpender(SpenderConfig{Share: .1}, l, clock.Real{})
		if _, _, ok := s.Reserve(t.Context(), "free", 1e9); !ok || l.calls.Load() != 0 {
			t.Error("a tenant without a quota is limited")
		}
		first, _, ok := s.Reserve(t.Context(), "limited", 600)
		if !ok {
			t.Fatal("refused")
		}
		if _, _, ok := s.Reserve(t.Context(), "limited", 300); !ok {
			t.Fatal("refused")
		}
		first.Settle(500) // 100 come back
		if left, limited := s.Left("limited"); left != 100 || !limited {
			t.Errorf("%d left", left)
		}
		if _, _, ok := s.Reserve(t.Context(), "limited", 200); !ok { // 100 here, 100 at the ledger
			t.Error("refused, with 200 left")
		}
		time.Sleep(15 * time.Second)
		if _, retry, ok := s.Reserve(t.Context(), "limited", 1); ok || retry != 45*time.Second {
			t.Errorf("let in over the quota; retry after %v", retry)
		}
		time.Sleep(45 * time.Second)
		if _, _, ok := s.Reserve(t.Context(), "limited", 1); !ok {
			t.Error("the next window refuses")
		}
	})
}

// Outputs that were longer than expected leave a debt, which one grant pays.
func TestSpenderPaysADebtAtOnce(t *testing.T) {
	l := &ledger{limit: 100_000, given: map[uint64]unit.Tokens{}}
	s := NewSpender(SpenderConfig{}, l, clock.NewVirtual(time.Unix(0, 0)))
	first, _, _ := s.Reserve(t.Context(), "limited", 1000)
	first.Settle(60_000)
	if _, _, ok := s.Reserve(t.Context(), "limited", 100); !ok || l.calls.Load() != 2 {
		t.Errorf("let in: %v, after %d grants", ok, l.calls.Load())
	}
}

// However many come at once, a window gives away its limit and, for each gateway, at
// most one request's more.
func TestSpendersShareALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{limit: 10_000, given: map[uint64]unit.Tokens{}}
		var spent atomic.Int64
		var wg sync.WaitGroup
		for range 4 {
			s := NewSpender(SpenderConfig{}, l, clock.Real{})
			for range 200 {
				wg.Go(func() {
					if _, _, ok := s.Reserve(t.Context(), "limited", 100); ok {
						spent.Add(100)
					}
				})
			}
		}
		wg.Wait()
		if got := spent.Load(); got < 9_600 || got > 10_400 {
			t.Errorf("%d of 10,000 tokens were spent", got)
		}
	})
}

func TestSpenderGivesCreditWithoutALedger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{limit: 1000, given: map[uint64]unit.Tokens{}}
		l.down.Store(true)
		s := NewSpender(SpenderConfig{}, l, clock.Real{})
		began := time.Now()
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				r, _, ok := s.Reserve(t.Context(), "limited", 10)
				if !ok || !r.Credit {
					t.Errorf("got %+v, %v", r, ok)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took > 250*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		l.down.Store(false)
		if _, _, ok := s.Reserve(t.Context(), "limited", 10); !ok {
			t.Error("refused")
		}
		if left, _ := s.Left("limited"); left > 0 && math.Signbit(float64(left)) {
			t.Errorf("%d left", left)
		}
	})
}
