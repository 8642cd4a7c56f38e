package server

import (
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/unit"
)

const (
	// largeBody is the size from which a body's memory is worth following.
	largeBody = 1 << 20
	// freedBodies is how much of it may lie about before it is collected: without
	// that, the heap would grow to twice the bodies in flight.
	freedBodies = 96 << 20
	// lookEvery is how often the end of a burst is looked for.
	lookEvery = 10 * time.Second
	// burst is the fewest requests at once that leave memory behind worth giving
	// back.
	burst = 32
)

// memory gives back what requests leave behind: the memory of large bodies as
// they end, and that of a burst when it is over.
type memory struct {
	requests *tracker
	free     func() // debug.FreeOSMemory

	freed atomic.Int64
	due   chan struct{} // holds one value
	stop  chan struct{}
	done  sync.WaitGroup
	begin sync.Once
	end   sync.Once
}

func newMemory(requests *tracker) *memory {
	return &memory{requests: requests, free: debug.FreeOSMemory, due: make(chan struct{}, 1), stop: make(chan struct{})}
}

// began says that a request with a body of n bytes, if that is known, has come.
func (m *memory) began(n unit.Bytes) {
	if n >= largeBody {
		pace.tighten()
	}
}

// ended says that a request with a body of n bytes is over.
func (m *memory) ended(n unit.Bytes) {
	if n < largeBody || m.freed.Add(int64(n)) < freedBodies {
		return
	}
	select {
	case m.due <- struct{}{}:
	default: // it is about to be done
	}
}

// start looks after the memory until close.
func (m *memory) start(c clock.Clock) {
	m.begin.Do(func() {
		pace.begin()
		m.done.Go(func() {
			defer pace.end()
			m.run(c)
		})
	})
}

func (m *memory) run(c clock.Clock) {
	timer := c.NewTimer(lookEvery)
	defer timer.Stop()
	for {
		select {
		case <-m.stop:
			return
		case <-m.due:
			m.freed.Store(0)
			m.free()
		case <-timer.C():
			if now, peak := m.requests.level(); peak >= burst && now*4 <= peak || m.freed.Swap(0) > 0 {
				m.requests.forgetPeak()
				m.free()
			}
			timer.Reset(lookEvery)
		}
	}
}

func (m *memory) close() {
	m.begin.Do(func() {}) // never to be started
	m.end.Do(func() { close(m.stop) })
	m.done.Wait()
}
