package server

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// garbage is how much a small heap may gather before it is collected, in bytes.
// Go would let it gather as much as lives: a gateway's 3 MB are gathered in some
// three hundred requests, and marking them, with the stacks of all connections,
// takes a tenth of the processor time. A heap that is larger than this is
// collected as Go does it.
const garbage = 16 << 20

// collector sets the pace of Go's garbage collector: after each collection by
// what lives. The process has one, however many servers it has.
type collector struct {
	mu      sync.Mutex
	users   int
	usual   int // the percentage before
	percent int // as set
	samples [2]metrics.Sample
}

// pace is the process's collector.
var pace = collector{samples: [2]metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}}}

// begin paces the collector until end. Who set GOGC knows better.
func (c *collector) begin() {
	if os.Getenv("GOGC") != "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users++; c.users == 1 {
		c.usual = debug.SetGCPercent(goPercent)
		c.percent = goPercent
		c.adjust()
		c.follow()
	}
}

// end gives the pace back that was before begin.
func (c *collector) end() {
	if os.Getenv("GOGC") != "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users--; c.users == 0 {
		debug.SetGCPercent(c.usual)
	}
}

const (
	// goPercent is Go's own percentage.
	goPercent = 100
	// goSmallest is the heap that Go takes for the smallest, in bytes: it lets that
	// one gather by the percentage, whatever lives.
	goSmallest = 4 << 20
)

// follow calls collected after the next collection, which finds this object
// unused.
func (c *collector) follow() {
	type mark struct{ _ [16]byte } // not so small that it would share its memory
	runtime.AddCleanup(new(mark), func(c *collector) { c.collected() }, c)
}

func (c *collector) collected() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users > 0 {
		c.adjust()
		c.follow()
	}
}

// adjust sets the percentage that allows as much garbage as lives, at least
// garbage. The caller holds mu. Setting it stops the world for a moment, so small
// changes are let be.
func (c *collector) adjust() {
	metrics.Read(c.samples[:])
	p := percentFor(c.samples[0].Value.Uint64() + c.samples[1].Value.Uint64())
	if 8*max(p-c.percent, c.percent-p) >= c.percent {
		debug.SetGCPercent(p)
		c.percent = p
	}
}

// tighten is Go's own pace from now until the next collection: the heap is about
// to grow by more than the last one knew of.
func (c *collector) tighten() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users > 0 && c.percent > goPercent {
		debug.SetGCPercent(goPercent)
		c.percent = goPercent
	}
}

// percentFor is the percentage for a heap of which live bytes live, stacks
// included.
func percentFor(live uint64) int {
	return int(max(goPercent, 100*garbage/max(live, goSmallest)))
}
