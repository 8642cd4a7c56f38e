package admit

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/yardmaster/yardmaster/core/errs"
)

func TestGateBounds(t *testing.T) {
	g := New(Config{MaxInFlight: 2, MaxBodyBytes: 100})
	a, err := g.Enter()
	if err != nil {
		t.Fatal(err)
	}
	b, _ := g.Enter()
	late, err := g.Enter() // comes in while there is room
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := errors.Join(a.Admit(), b.Admit()); err != nil {
			t.Fatal(err)
		}
	}
	if err := late.Admit(); !errors.Is(err, ErrFull) {
		t.Errorf("a third request admitted: %v", err)
	}
	late.Close()
	if _, err := g.Enter(); !errors.Is(err, ErrFull) || errs.KindOf(err) != errs.Saturated || errs.As(err).RetryAfter <= 0 {
		t.Errorf("third request: %v", err)
	}
	if err := a.Hold(60); err != nil {
		t.Fatal(err)
	}
	if err := b.Hold(60); !errors.Is(err, ErrFull) {
		t.Errorf("120 of 100 bytes: %v", err)
	}
	a.Release()
	if err := b.Hold(60); err != nil {
		t.Error(err)
	}
	for range 2 {
		a.Close()
		b.Close()
	}
	if g.InFlight() != 0 || g.bytes.Load() != 0 {
		t.Errorf("%d requests, %d bytes left", g.InFlight(), g.bytes.Load())
	}
}

// A request that is still being read keeps nobody out.
func TestReadingTakesNoPlace(t *testing.T) {
	g := New(Config{MaxInFlight: 1})
	for range 100 {
		p, err := g.Enter()
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
	}
	p, err := g.Enter()
	if err != nil || p.Admit() != nil || g.InFlight() != 1 {
		t.Errorf("%v, %d in flight", err, g.InFlight())
	}
	p.Close()
	if g.InFlight() != 0 {
		t.Errorf("%d left", g.InFlight())
	}
}

func TestGateNeverExceedsUnderContention(t *testing.T) {
	g := New(Config{MaxInFlight: 3})
	var inside, most atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				p, err := g.Enter()
				if err != nil {
					continue
				}
				if p.Admit() != nil {
					p.Close()
					continue
				}
				if n := inside.Add(1); n > most.Load() {
					most.Store(n)
				}
				inside.Add(-1)
				p.Close()
			}
		})
	}
	wg.Wait()
	if most.Load() > 3 || g.InFlight() != 0 {
		t.Errorf("most %d, left %d", most.Load(), g.InFlight())
	}
}
