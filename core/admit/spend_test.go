package admit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/unit"
)

// ledger is a Granter of one tenant.
type ledger struct {
	limit unit.Tokens
	mu    sync.Mutex
	given map[uint64]unit.Tokens
	calls atomic.Int32
	down  atomic.Bool
	// window is the newest of any holder; the leader's clock is in it where leads is set.
	window uint64
	leads  bool
}

func (l *ledger) Quota(tenant string) (Quota, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Quota{Limit: l.limit, Window: l.window}, tenant == "limited"
}

func (l *ledger) Grant(ctx context.Context, _ string, window uint64, tokens unit.Tokens) (unit.Tokens, error) {
	l.calls.Add(1)
	if l.down.Load() {
		<-ctx.Done()
		return 0, errors.New("no leader")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if window < l.window || l.leads && (window > l.window+1) {
		return 0, fmt.Errorf("window %d: %w", window, ErrClock)
	}
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
				if !ok || r.Credit != CreditLedger {
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

// at is a spender whose clock is some windows after the beginning of time.
func at(l *ledger, windows float64) (*Spender, *clock.Virtual) {
	clk := clock.NewVirtual(time.Unix(0, 0).Add(time.Duration(windows * float64(time.Minute))))
	return NewSpender(SpenderConfig{Share: .1}, l, clk), clk
}

// A gateway whose clock is ahead or behind costs nobody a request.
func TestClocksThatDisagreeRefuseNobody(t *testing.T) {
	for _, tt := range []struct {
		name   string
		own    float64
		ledger uint64
		leads  bool
		credit string
		window uint64 // of the grant
	}{
		{"they agree", 100.5, 100, false, "", 100},
		{"the ledger has not begun the window", 100.5, 60, false, "", 100},
		{"the ledger is one ahead", 100.5, 101, false, "", 101},
		{"the ledger is far ahead", 100.5, 160, false, CreditClock, 0},
		{"the leader takes this one for far ahead", 160.5, 100, true, CreditClock, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := &ledger{limit: 1000, given: map[uint64]unit.Tokens{}, window: tt.ledger, leads: tt.leads}
			s, _ := at(l, tt.own)
			for range 20 {
				r, _, ok := s.Reserve(t.Context(), "limited", 10)
				if !ok || r.Credit != tt.credit {
					t.Fatalf("let in %v, credit %q; want %q", ok, r.Credit, tt.credit)
				}
				r.Settle(10)
			}
			if tt.credit == "" && l.given[tt.window] == 0 {
				t.Errorf("granted %v", l.given)
			}
			if n := l.calls.Load(); n > 3 {
				t.Errorf("the ledger was asked %d times", n)
			}
			if left, _ := s.Left("limited"); left < 0 {
				t.Errorf("%d are owed", -left)
			}
		})
	}
}

// A window that another gateway begins while this one asks for the one before is joined.
func TestSpenderJoinsTheNewWindow(t *testing.T) {
	l := &ledger{limit: 1000, given: map[uint64]unit.Tokens{}, window: 100}
	s, _ := at(l, 100.99)
	moving := &moved{ledger: l}
	s.granter = moving
	r, _, ok := s.Reserve(t.Context(), "limited", 10)
	if !ok || r.Credit != "" || l.given[101] == 0 {
		t.Errorf("let in %v, credit %q, granted %v", ok, r.Credit, l.given)
	}
}

// moved is a ledger whose window is over when it is asked.
type moved struct{ *ledger }

func (m *moved) Grant(ctx context.Context, tenant string, window uint64, n unit.Tokens) (unit.Tokens, error) {
	m.mu.Lock()
	m.window = 101
	m.mu.Unlock()
	return m.ledger.Grant(ctx, tenant, window, n)
}

// A clock that is set back costs no request, and no window its end.
func TestClockIsSetBack(t *testing.T) {
	for _, back := range []float64{1, 60} {
		l := &ledger{limit: 1000, given: map[uint64]unit.Tokens{}}
		s, _ := at(l, 100.5)
		if _, _, ok := s.Reserve(t.Context(), "limited", 10); !ok {
			t.Fatal("refused")
		}
		_, s.clock = at(l, 100.5-back)
		r, _, ok := s.Reserve(t.Context(), "limited", 500)
		if !ok || r.Credit != "" {
			t.Errorf("%v windows back: let in %v, credit %q", back, ok, r.Credit)
		}
	}
}

// What was let in on credit, or with the last tokens, and used less in the end than
// was expected, is not owed for ever.
func TestDebtsAreSettledAcrossWindows(t *testing.T) {
	t.Run("the last tokens", func(t *testing.T) {
		l := &ledger{limit: 100, given: map[uint64]unit.Tokens{}}
		s, clk := at(l, 10)
		first, _, _ := s.Reserve(t.Context(), "limited", 99)
		large, _, ok := s.Reserve(t.Context(), "limited", 100) // one is left
		if !ok {
			t.Fatal("the last token does not pay")
		}
		clk.Advance(time.Minute)
		if _, _, ok := s.Reserve(t.Context(), "limited", 10); !ok { // with the last again
			t.Fatal("the last token does not pay in the next window")
		}
		if _, _, ok := s.Reserve(t.Context(), "limited", 1); ok {
			t.Fatal("a debt of 99 does not count")
		}
		large.Settle(21) // owes 20
		first.Settle(0)  // can pay them: it would have, a window before
		clk.Advance(time.Minute)
		if r, _, ok := s.Reserve(t.Context(), "limited", 10); !ok || r.Credit != "" {
			t.Error("refused after the debt was settled")
		}
		if left, _ := s.Left("limited"); left < 0 {
			t.Errorf("%d left", left)
		}
	})
	t.Run("credit", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := &ledger{limit: 100, given: map[uint64]unit.Tokens{}}
			l.down.Store(true)
			s := NewSpender(SpenderConfig{}, l, clock.Real{})
			r, _, _ := s.Reserve(t.Context(), "limited", 100)
			l.down.Store(false)
			time.Sleep(time.Minute)
			s.Reserve(t.Context(), "limited", 1) // begins the window, with the debt
			r.Settle(0)
			if left, _ := s.Left("limited"); left < 0 || left > 100 {
				t.Errorf("%d left", left)
			}
			r, _, ok := s.Reserve(t.Context(), "limited", 1)
			if !ok || r.Credit != "" {
				t.Errorf("let in %v, credit %q", ok, r.Credit)
			}
		})
	})
	t.Run("nobody gains", func(t *testing.T) {
		l := &ledger{limit: 100, given: map[uint64]unit.Tokens{}}
		s, clk := at(l, 10)
		r, _, _ := s.Reserve(t.Context(), "limited", 50)
		clk.Advance(time.Minute)
		s.Reserve(t.Context(), "limited", 100)
		r.Settle(0) // of a window that is over
		if left, _ := s.Left("limited"); left != 0 {
			t.Errorf("%d left of nothing", left)
		}
	})
}
