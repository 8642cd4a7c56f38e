package admit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/errs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLineIsServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		depth := 0
		lobby := NewLobby(clock.Real{}, 10)
		line := lobby.NewLine(func(n int) { depth = n })
		var mu sync.Mutex
		var served []int
		room := 0
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				s, err := line.Join(0, nil)
				if err != nil {
					t.Error(err)
					return
				}
				defer s.Leave()
				for {
					front, err := s.Await(t.Context(), time.Minute)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if front && room > 0 {
						room--
						served = append(served, i)
						mu.Unlock()
						return
					}
					mu.Unlock()
				}
			})
			synctest.Wait()
		}
		if depth != 5 || lobby.Waiting() != 5 {
			t.Errorf("%d and %d wait", depth, lobby.Waiting())
		}
		mu.Lock()
		room = 2
		mu.Unlock()
		lobby.Stir() // once, for two
		synctest.Wait()
		if !slices.Equal(served, []int{0, 1}) {
			t.Errorf("served %v", served)
		}
		mu.Lock()
		room = 5
		mu.Unlock()
		lobby.Stir()
		wg.Wait()
		if !slices.Equal(served, []int{0, 1, 2, 3, 4}) || depth != 0 || lobby.Waiting() != 0 {
			t.Errorf("served %v, %d wait", served, depth)
		}
	})
}

func TestLineIsBounded(t *testing.T) {
	line := NewLobby(clock.Real{}, 1).NewLine(nil)
	s, err := line.Join(0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := line.Join(0, nil); !errors.Is(err, ErrFull) || errs.KindOf(err) != errs.Saturated {
		t.Errorf("second: %v", err)
	}
	s.Leave()
	s.Leave()
	if s, err := line.Join(0, nil); err != nil {
		t.Error(err)
	} else {
		s.Leave()
	}
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	line := NewLobby(clock.Real{}, 9).NewLine(nil)
	first, _ := line.Join(0, nil)
	defer first.Leave()
	second, _ := line.Join(0, nil)
	defer second.Leave()
	why := errors.New("left")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := second.Await(ctx, time.Hour); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
}

// Any order of joining, leaving and stirring keeps the order of those who stay,
// and never leaves a front that nobody woke.
func TestLineAgainstAList(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		lobby := NewLobby(clock.Real{}, 8)
		line := lobby.NewLine(nil)
		var model []*Spot
		rt.Repeat(map[string]func(*rapid.T){
			"join": func(rt *rapid.T) {
				s, err := line.Join(0, nil)
				if (err != nil) != (len(model) == 8) {
					rt.Fatalf("%d wait: %v", len(model), err)
				}
				if err == nil {
					model = append(model, s)
				}
			},
			"leave": func(rt *rapid.T) {
				if len(model) == 0 {
					rt.Skip()
				}
				i := rapid.IntRange(0, len(model)-1).Draw(rt, "i")
				model[i].Leave()
				model = slices.Delete(model, i, i+1)
				if i == 0 && len(model) > 0 {
					if front, _ := model[0].Await(t.Context(), time.Hour); !front {
						rt.Fatal("not at the front")
					}
				}
			},
			"stir": func(rt *rapid.T) {
				lobby.Stir()
				if len(model) > 0 {
					if front, _ := model[0].Await(t.Context(), time.Hour); !front {
						rt.Fatal("not at the front")
					}
				}
			},
			"": func(rt *rapid.T) {
				if line.Len() != len(model) || lobby.Waiting() != len(model) {
					rt.Fatalf("%d and %d, want %d", line.Len(), lobby.Waiting(), len(model))
				}
				for i, s := range model {
					if s.Front() != (i == 0) {
						rt.Fatalf("spot %d: front %v", i, s.Front())
					}
				}
			},
		})
		for _, s := range model {
			s.Leave()
		}
	})
}

func TestBudget(t *testing.T) {
	b := NewBudget(0.2)
	for range burst {
		if !b.Retry() {
			t.Fatal("the burst is too small")
		}
	}
	if b.Retry() {
		t.Error("a retry beyond the burst")
	}
	for range 10 {
		b.Request()
	}
	for i := range 3 {
		if got := b.Retry(); got != (i < 2) {
			t.Errorf("ten requests earn two retries; retry %d: %v", i+1, got)
		}
	}
	if new(Budget).Retry() {
		t.Error("the zero budget allows retries")
	}
}
