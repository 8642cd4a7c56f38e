package host_test

import (
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/abi/abitest"
	"github.com/yardmaster/yardmaster/policies/host"
	"github.com/yardmaster/yardmaster/policies/module"
)

// What no trial finds is contained: the fallback decides in the same call, the next
// good call is good, and memory stays within its bound.
func TestSleepersAreContained(t *testing.T) {
	h := newHost(t, &services{})
	before := resident()
	for _, hostile := range abitest.Corpus() {
		if hostile.Sleeper == nil {
			continue
		}
		t.Run(hostile.Name, func(t *testing.T) {
			p := load(t, h, hostile.Sleeper, 2)
			r, err := host.NewRouter(p, route.LeastRequest{})
			if err != nil {
				t.Fatal(err)
			}
			contains(t, r, hostile.Fault)
			if p.Lost() != 0 {
				t.Errorf("%d instances were lost", p.Lost())
			}
		})
	}
	// Two instances of 64 pages each, one that is being replaced, stacks, and what tests
	// need themselves.
	if grown := resident() - before; !raceEnabled && grown > 3*abi.StandardPages*module.PageSize+16<<20 {
		t.Errorf("memory has grown by %d MiB", grown>>20)
	}
}

// contains wakes a sleeper up ten times.
func contains(t *testing.T, r *host.Router, fault string) {
	t.Helper()
	const n = 20
	c := candidates(n)
	fallback, got := make([]float64, n), make([]float64, n)
	route.LeastRequest{}.Score(&route.Query{}, c, fallback)
	good := slices.Clone(c.Queued)
	if pickers(r, c) {
		good = nil // it picks
	}
	for range 10 {
		for r.Try(&route.Query{Prompt: 5}, c, got) != host.NoFault {
			time.Sleep(time.Millisecond) // while an instance is replaced
		}
		if good != nil && !slices.Equal(good, got) {
			t.Fatalf("a good call: %s", cmp.Diff(good, got))
		}
		began := time.Now()
		r.Score(&route.Query{Prompt: abitest.Trigger}, c, got)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the attack took %s", took)
		}
		if fault == "trap" && slices.Equal(got, good) {
			continue // it traps at every third call only
		}
		if diff := cmp.Diff(fallback, got); diff != "" {
			t.Fatalf("the fallback did not decide: %s", diff)
		}
	}
	counts := r.Counts()
	for _, f := range host.Faults() {
		if f.String() == fault && counts.Faults[f] == 0 {
			t.Errorf("no fault %s: %+v", fault, counts)
		}
		if f.String() != fault && f != host.FaultBusy && counts.Faults[f] != 0 {
			t.Errorf("%d faults %s", counts.Faults[f], f)
		}
	}
}

// pickers says whether a router picks, so that its costs are 0 and infinite.
func pickers(r *host.Router, c *route.Columns) bool {
	cost := make([]float64, len(c.Worker))
	return r.Try(&route.Query{}, c, cost) == host.NoFault && cost[1] > 1e300
}

// resident is the process's memory in bytes, guests' included, or where the system does
// not tell, what the heap holds.
func resident() int64 {
	debug.FreeOSMemory()
	if b, err := os.ReadFile("/proc/self/statm"); err == nil {
		if fields := strings.Fields(string(b)); len(fields) > 1 {
			if n, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
				return n * int64(os.Getpagesize())
			}
		}
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// A collection does not wait long for a guest that uses all its fuel in the slowest
// way: the world stops within 20 ms. On a machine that others use too a thread may wait
// longer than that for a processor, so that it is tried several times.
func TestCollectionsDoNotWait(t *testing.T) {
	h := newHost(t, &services{})
	for kind, fuel := range map[abi.Kind]int64{abi.Router: host.PauseAbove, abi.Observer: 20_000_000} {
		p := load(t, h, attacker(kind, fuel).Build(), 2)
		t.Run(string(kind), func(t *testing.T) {
			var seen []string
			for range 20 {
				stop := underAttack(t, p, func() {
					for range 5 {
						runtime.GC()
					}
				})
				if stop < .020 {
					return
				}
				seen = append(seen, strconv.FormatFloat(1000*stop, 'f', 1, 64)+" ms")
			}
			t.Errorf("the world stopped after %v", seen)
		})
	}
}

// underAttack runs f beside attacks and returns the longest stop in seconds.
func underAttack(t *testing.T, p *host.Policy, f func()) float64 {
	t.Helper()
	var end atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !end.Load() {
			strike(p, end.Load)
		}
	}()
	var s stops
	s.longest()
	f()
	longest := s.longest()
	end.Store(true)
	<-done
	return longest
}
