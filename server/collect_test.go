package server

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestPercentFor(t *testing.T) {
	for _, one := range []struct {
		live uint64
		want int
	}{{0, 400}, {4 << 20, 400}, {8 << 20, 200}, {16 << 20, 100}, {1 << 30, 100}} {
		if got := percentFor(one.live); got != one.want {
			t.Errorf("%d bytes live: %d %%, want %d", one.live, got, one.want)
		}
	}
}

// The collector's pace follows what lives, and the process gets its own back when
// the last server ends.
func TestPaceFollowsTheHeap(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(77)
	defer debug.SetGCPercent(before)
	c := collector{samples: pace.samples}
	c.begin()
	c.begin()
	percent := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.percent
	}
	reach := func(what string, ok func(int) bool) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); !ok(percent()); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d %%", what, percent())
			}
			runtime.GC()
		}
	}
	reach("a small heap", func(p int) bool { return p > 2*goPercent })
	held := make([]byte, 64<<20)
	reach("a large heap", func(p int) bool { return p == goPercent })
	runtime.KeepAlive(held)
	reach("a small heap again", func(p int) bool { return p > 2*goPercent })
	c.tighten()
	if p := percent(); p != goPercent {
		t.Errorf("%d %% before a large body", p)
	}
	c.end()
	c.end()
	if now := debug.SetGCPercent(77); now != 77 {
		t.Errorf("%d %% are left behind", now)
	}
}
