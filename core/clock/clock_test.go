package clock

import (
	"slices"
	"testing"
	"time"
)

func TestVirtualFiresInOrder(t *testing.T) {
	start := time.Unix(100, 0)
	v := NewVirtual(start)
	late, early := v.NewTimer(3*time.Second), v.NewTimer(time.Second)
	if d, ok := v.Next(); !ok || d != time.Second {
		t.Fatalf("Next = %v, %v", d, ok)
	}
	v.Advance(2 * time.Second)
	if got := <-early.C(); !got.Equal(start.Add(time.Second)) {
		t.Errorf("early fired at %v", got)
	}
	select {
	case <-late.C():
		t.Error("late fired early")
	default:
	}
	if !late.Stop() {
		t.Error("Stop of an armed timer reported false")
	}
	v.Advance(time.Hour)
	select {
	case <-late.C():
		t.Error("a stopped timer fired")
	default:
	}
}

func TestVirtualStopDropsAFiredValue(t *testing.T) {
	v := NewVirtual(time.Unix(0, 0))
	timer := v.NewTimer(0)
	if timer.Stop() {
		t.Error("Stop of a fired timer reported true")
	}
	select {
	case <-timer.C():
		t.Error("value delivered after Stop")
	default:
	}
	timer.Reset(time.Second)
	v.Advance(time.Second)
	<-timer.C()
}

func TestVirtualAfterFuncMayUseTheClock(t *testing.T) {
	v := NewVirtual(time.Unix(0, 0))
	var at []time.Duration
	var timer Timer
	timer = v.AfterFunc(time.Second, func() {
		at = append(at, v.Now().Sub(time.Unix(0, 0)))
		if len(at) < 3 {
			timer.Reset(2 * time.Second)
		}
	})
	v.Advance(10 * time.Second)
	if want := []time.Duration{time.Second, 3 * time.Second, 5 * time.Second}; !slices.Equal(at, want) {
		t.Errorf("fired at %v, want %v", at, want)
	}
	timer.Reset(0)
	if len(at) != 3 {
		t.Error("fired outside Advance")
	}
	v.Advance(0)
	if len(at) != 4 || timer.Stop() {
		t.Errorf("a due timer did not fire at Advance(0): %v", at)
	}
}
