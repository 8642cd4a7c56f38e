package admit

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/unit"
)

// set changes the quota.
func (l *ledger) set(limit unit.Tokens) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limit = limit
}

// A quota that is raised is felt at once by a tenant that was refused, and one that is
// lowered takes what the gateway holds but for a share.
func TestQuotaIsChangedWithinAWindow(t *testing.T) {
	l := &ledger{limit: 100, given: map[uint64]unit.Tokens{}}
	s, _ := at(l, 10)
	if _, _, ok := s.Reserve(t.Context(), "limited", 100); !ok {
		t.Fatal("refused")
	}
	asked := l.calls.Load()
	for range 3 {
		if _, _, ok := s.Reserve(t.Context(), "limited", 50); ok {
			t.Fatal("let in over the quota")
		}
	}
	if n := l.calls.Load() - asked; n > 1 {
		t.Errorf("an empty ledger was asked %d times", n)
	}
	l.set(1000)
	held, _, ok := s.Reserve(t.Context(), "limited", 500)
	if !ok {
		t.Fatal("refused after the quota was raised")
	}
	held.Settle(0)
	if left, _ := s.Left("limited"); left != 500 {
		t.Fatalf("%d left", left)
	}
	l.set(200) // a tenth of it is held, and the ledger has granted more already
	for range 2 {
		if _, _, ok := s.Reserve(t.Context(), "limited", 20); !ok {
			break
		}
	}
	if _, _, ok := s.Reserve(t.Context(), "limited", 1); ok {
		t.Error("what was held of a larger quota is still spent")
	}
	l.set(0)
	if _, retry, ok := s.Reserve(t.Context(), "limited", 1); ok || retry != 0 {
		t.Errorf("a quota of nothing: let in %v, retry %v", ok, retry)
	}
}

// A limit that is raised while the ledger is asked under the old one is not missed.
func TestQuotaIsRaisedWhileAsked(t *testing.T) {
	l := &ledger{limit: 100, given: map[uint64]unit.Tokens{}}
	s, _ := at(l, 10)
	s.granter = &raised{ledger: l}
	if _, _, ok := s.Reserve(t.Context(), "limited", 100); !ok {
		t.Fatal("refused")
	}
	if _, _, ok := s.Reserve(t.Context(), "limited", 90); !ok {
		t.Error("refused with a quota that was raised meanwhile")
	}
}

// raised is a ledger whose first answer is followed by a larger quota.
type raised struct{ *ledger }

func (r *raised) Grant(ctx context.Context, tenant string, window uint64, n unit.Tokens) (unit.Tokens, error) {
	granted, err := r.ledger.Grant(ctx, tenant, window, n)
	r.set(1000)
	return granted, err
}

// What no window would ever have is refused without asking, and leaves nothing behind.
func TestRequestsThatNeverFit(t *testing.T) {
	l := &ledger{limit: 100, given: map[uint64]unit.Tokens{}}
	s, _ := at(l, 10)
	if _, retry, ok := s.Reserve(t.Context(), "limited", 101); ok || retry != 0 || l.calls.Load() != 0 {
		t.Errorf("let in %v, retry %v, after %d grants", ok, retry, l.calls.Load())
	}
	if _, _, ok := s.Reserve(t.Context(), "limited", 100); !ok {
		t.Error("refused though the window has as many")
	}
}

// The last tokens let in one request of a gateway, however many come at once, and a purse
// in debt none.
func TestLastTokensLetOneIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{limit: 1000, given: map[uint64]unit.Tokens{}}
		s := NewSpender(SpenderConfig{}, l, clock.Real{})
		var in atomic.Int32
		var wg sync.WaitGroup
		for range 60 {
			wg.Go(func() {
				if _, _, ok := s.Reserve(t.Context(), "limited", 300); ok {
					in.Add(1)
				}
			})
		}
		wg.Wait()
		if in.Load() != 4 {
			t.Errorf("%d of 300 tokens were let in by 1,000, want 3 and one with the last 100", in.Load())
		}
		if left, _ := s.Left("limited"); left != -200 {
			t.Errorf("%d left", left)
		}
	})
}

// While the ledger is down one request now and then finds out, and nobody else waits.
func TestOutageOfTheLedgerDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{limit: 1000, given: map[uint64]unit.Tokens{}}
		l.down.Store(true)
		s := NewSpender(SpenderConfig{}, l, clock.Real{})
		var slow, waited int
		for range 600 { // a minute, ten a second
			began := time.Now()
			r, _, ok := s.Reserve(t.Context(), "limited", 10)
			if !ok || r.Credit != CreditLedger {
				t.Fatalf("let in %v, credit %q", ok, r.Credit)
			}
			if took := time.Since(began); took > 0 {
				slow, waited = slow+1, waited+int(took/time.Millisecond)
			}
			r.Settle(0)
			time.Sleep(100 * time.Millisecond)
		}
		if slow > 9 || slow != int(l.calls.Load()) {
			t.Errorf("%d requests waited, %d ms in all, for %d grants", slow, waited, l.calls.Load())
		}
		t.Logf("%d of 600 requests waited, %d ms in all", slow, waited)
		l.down.Store(false)
		time.Sleep(longestPause)
		if r, _, ok := s.Reserve(t.Context(), "limited", 10); !ok || r.Credit != "" {
			t.Errorf("after the outage: let in %v, credit %q", ok, r.Credit)
		}
		l.down.Store(true)
		_, _, _ = s.Reserve(t.Context(), "limited", 500)
		if s.down.pause != firstPause {
			t.Errorf("the next outage begins with a pause of %v", s.down.pause)
		}
	})
}

// However long the ledger was out of reach and however much was used meanwhile, one
// window pays for it.
func TestALongOutageIsNotOwedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{limit: 100, given: map[uint64]unit.Tokens{}}
		s := NewSpender(SpenderConfig{}, l, clock.Real{})
		l.down.Store(true)
		for range 60 { // an hour, fifty times the limit in each minute
			for range 50 {
				r, _, ok := s.Reserve(t.Context(), "limited", 90)
				if !ok || r.Credit == "" {
					t.Fatal("an outage of the ledger is one of the service")
				}
				r.Settle(100)
			}
			time.Sleep(time.Minute)
		}
		l.down.Store(false)
		time.Sleep(time.Minute) // it is asked again
		refused := 0
		for ; refused < 5; refused++ {
			if _, _, ok := s.Reserve(t.Context(), "limited", 10); ok {
				break
			}
			time.Sleep(time.Minute)
		}
		if refused != 1 {
			t.Errorf("shut out for %d minutes, want one", refused)
		}
		// What outputs took beyond what was reserved, with grants, is owed whole.
		r, _, ok := s.Reserve(t.Context(), "limited", 10)
		if !ok {
			t.Fatal("refused")
		}
		r.Settle(1000)
		for range 8 {
			time.Sleep(time.Minute)
			if _, _, ok := s.Reserve(t.Context(), "limited", 10); ok {
				t.Fatal("a debt of ten windows is forgotten")
			}
		}
	})
}

// A client that leaves while the ledger is asked says nothing of the ledger, and the
// grant is not lost.
func TestLeavingIsNoOutage(t *testing.T) {
	l := &ledger{limit: 1000, given: map[uint64]unit.Tokens{}}
	s, _ := at(l, 10)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	r, _, ok := s.Reserve(gone, "limited", 10)
	if !ok || r.Credit != "" || s.down.pause != 0 {
		t.Errorf("let in %v, credit %q, a pause of %v", ok, r.Credit, s.down.pause)
	}
}

// A clock that is set back makes no outage longer.
func TestOutageAndAClockThatIsSetBack(t *testing.T) {
	now := time.Unix(1000, 0)
	o := outage{since: now, pause: longestPause}
	if !o.lasts(now.Add(time.Second)) || o.lasts(now.Add(longestPause)) || o.lasts(now.Add(-time.Hour)) {
		t.Error("the pause is not from its beginning on, as long as it is")
	}
}
