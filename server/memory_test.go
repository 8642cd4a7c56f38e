package server

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
)

func TestMemoryIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var requests tracker
		m := newMemory(&requests)
		var freed atomic.Int64
		m.free = func() { freed.Add(1) }
		m.start(clock.Real{})
		defer m.close()
		expect := func(want int64, what string) {
			t.Helper()
			synctest.Wait()
			if freed := freed.Load(); freed != want {
				t.Errorf("%s: given back %d times, want %d", what, freed, want)
			}
		}
		m.ended(largeBody - 1)
		time.Sleep(2 * lookEvery)
		expect(0, "small bodies")
		for range freedBodies / (32 << 20) {
			m.ended(32 << 20)
		}
		expect(1, "many large bodies")
		m.ended(2 << 20)
		expect(1, "one large body")
		time.Sleep(2 * lookEvery)
		expect(2, "one large body, later")
		for range 2 * burst {
			requests.enter()
		}
		time.Sleep(2 * lookEvery)
		expect(2, "during a burst")
		for range 2 * burst {
			requests.leave()
		}
		time.Sleep(2 * lookEvery)
		expect(3, "after a burst")
		time.Sleep(10 * lookEvery)
		expect(3, "at rest")
	})
}
