package host_test

import (
	"context"
	"math"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/abi/abitest"
	"github.com/yardmaster/yardmaster/policies/host"
)

// attacker is a policy that uses all its fuel in the slowest way that we know: it
// follows a chain through the lines of 8 MiB of its memory in an order that no
// prefetcher follows. Its first calls make the chain, a linear congruence over the
// line's number, 4,000 lines each.
func attacker(kind abi.Kind, fuel int64) abitest.Policy {
	const lines, each = 1 << 17, 4000
	step := strings.Repeat("local.get @at i32.load 0x400000 local.set @at ", 40)
	code := `i32.const 8192 i32.load 0 local.tee @n i32.const ` + strconv.Itoa(lines) + ` i32.lt_u if
		local.get @n i32.const ` + strconv.Itoa(each) + ` i32.add local.set @end
		loop
			local.get @n i32.const 6 i32.shl
			local.get @n i32.const 1664525 i32.mul i32.const 1013904223 i32.add i32.const 0x1ffff i32.and i32.const 6 i32.shl
			i32.store 0x400000
			local.get @n i32.const 1 i32.add local.tee @n local.get @end i32.lt_u br_if 0 end
		i32.const 8192 local.get @n i32.store 0
		else loop ` + step + ` br 0 end end `
	p := abitest.Policy{Kind: kind, Fuel: fuel, Pages: 256, Locals: "i32 i32 i32", Code: code + "i32.const 0"}
	first := 1 // local behind the parameter
	if kind == abi.Admission {
		p.Code, first = code+"i64.const 0", 0
	}
	p.Code = strings.NewReplacer("@at", strconv.Itoa(first), "@n", strconv.Itoa(first+1), "@end", strconv.Itoa(first+2)).Replace(p.Code)
	p.Min = 256
	return p
}

// warm is how often an instance is called: until its chain is made, and some more.
const warm = 40

// longestStop is the longest time since the one before that a collection had to wait
// for all goroutines to stop, in seconds: an upper bound of the histogram's bucket.
type stops struct{ before []uint64 }

const stopping = "/sched/pauses/stopping/gc:seconds"

func (s *stops) longest() float64 {
	sample := []metrics.Sample{{Name: stopping}}
	metrics.Read(sample)
	h := sample[0].Value.Float64Histogram()
	worst := 0.0
	for i, n := range h.Counts {
		if s.before != nil && n > s.before[i] {
			worst = h.Buckets[i]
			if !math.IsInf(h.Buckets[i+1], 1) {
				worst = h.Buckets[i+1]
			}
		}
	}
	s.before = append(s.before[:0], h.Counts...)
	return worst
}

func BenchmarkCollections(b *testing.B) {
	attacks := map[string]func() func(){
		"go": func() func() {
			return func() {
				x := 0
				for i := range 20_000_000 {
					x += i * x
				}
				runtime.KeepAlive(x)
			}
		},
	}
	h := newHost(b, &services{})
	for name, p := range map[string]abitest.Policy{
		"router 1M": attacker(abi.Router, 1_000_000), "router 4M": attacker(abi.Router, 4_000_000), "admission": attacker(abi.Admission, 0), "autoscaler 20M": attacker(abi.Autoscaler, 20_000_000),
	} {
		attacks[name] = func() func() {
			p := load(b, h, p.Build(), 4)
			return func() { strike(p, func() bool { return false }) }
		}
	}
	for name, start := range attacks {
		b.Run(name, func(b *testing.B) {
			f := start()
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				for ctx.Err() == nil {
					f()
				}
			}()
			var s stops
			s.longest()
			worst, sum, stop := time.Duration(0), time.Duration(0), 0.0
			n := 0
			for b.Loop() {
				began := time.Now()
				runtime.GC()
				took := time.Since(began)
				worst, sum, n = max(worst, took), sum+took, n+1
				stop = max(stop, s.longest())
			}
			cancel()
			<-done
			b.ReportMetric(float64(worst.Microseconds())/1000, "gc-max-ms")
			b.ReportMetric(1000*stop, "stop-max-ms")
		})
	}
}

// strike has one instance make its chain and run out of fuel on it, until it is to stop.
func strike(p *host.Policy, stop func() bool) {
	in := p.Take()
	if in == nil {
		runtime.Gosched()
		return
	}
	for i := 0; i < warm && !stop(); i++ {
		attack(in, p)
	}
	p.Put(in)
}

func attack(in *host.Instance, p *host.Policy) {
	switch p.Manifest().Kind {
	case abi.Admission:
		_, _ = in.Admit()
	case abi.Observer:
		_ = in.Observe(1)
	case abi.Autoscaler:
		_, _, _ = in.Tick(1)
	default:
		_, _ = in.Score(1)
	}
}
