package pd_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/gpu/cpu/batch/batchtest"
	"github.com/yardmaster/yardmaster/gpu/transfer/tcp"
)

var (
	runs = flag.Int("runs", 500, "runs of the fault test")
	seed = flag.Uint64("seed", 0, "run only this seed of the fault test")
)

// fault is what goes wrong in one run.
type fault struct {
	kind string
	at   int64 // byte of what the prefill worker sends on a connection
	bit  byte
	wait time.Duration
}

func drawFault(random *rand.Rand) fault {
	f := fault{
		kind: []string{"none", "cut", "corrupt", "stall", "restart prefill", "restart decode", "cancel"}[random.IntN(7)],
		at:   random.Int64N(20_000), bit: 1 << random.IntN(8), wait: time.Duration(random.Int64N(int64(12 * time.Millisecond))),
	}
	if f.kind == "stall" && random.IntN(4) > 0 { // they take long: have fewer
		f.kind = "cut"
	}
	return f
}

// relay stands between two workers and passes bytes on, but for the fault, which
// it commits on the first connection that sends enough.
type relay struct {
	net.Listener
	fault fault
	stop  chan struct{}
	once  sync.Once
	wg    sync.WaitGroup
}

func newRelay(t *testing.T, to string, f fault) *relay {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: l, fault: f, stop: make(chan struct{})}
	r.wg.Go(func() {
		for {
			down, err := l.Accept()
			if err != nil {
				return
			}
			up, err := new(net.Dialer).DialContext(context.Background(), "tcp", to)
			if err != nil {
				_ = down.Close()
				continue
			}
			r.wg.Go(func() { _, _ = io.Copy(up, down); _ = up.Close() })
			r.wg.Go(func() { defer func() { _ = down.Close(); _ = up.Close() }(); r.pass(down, up) })
		}
	})
	return r
}

func (r *relay) pass(to io.Writer, from io.Reader) {
	var offset int64
	b := make([]byte, 4<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		out := b[:n]
		if at := r.fault.at - offset; at >= 0 && at < int64(n) {
			r.once.Do(func() {
				switch r.fault.kind {
				case "cut":
					out, err = b[:at], io.ErrUnexpectedEOF
				case "corrupt":
					out[at] ^= r.fault.bit
				case "stall":
					<-r.stop
				}
			})
		}
		offset += int64(n)
		if _, werr := to.Write(out); werr != nil || err != nil {
			return
		}
	}
}

func (r *relay) close() {
	close(r.stop)
	_ = r.Close()
	r.wg.Wait()
}

// TestFaults runs requests over two engines while their connection, or one of
// their endpoints, fails at a random moment. Each request's text is the one of
// aggregated serving, and every block is free in the end.
func TestFaults(t *testing.T) {
	first, n := uint64(1), *runs
	if testing.Short() {
		n = 50
	}
	if *seed != 0 {
		first, n = *seed, 1
	}
	seen := tally{counts: map[string]int{}}
	t.Run("runs", func(t *testing.T) {
		for s := first; s < first+uint64(n); s++ {
			t.Run(fmt.Sprint("seed=", s), func(t *testing.T) {
				t.Parallel() // they wait more than they compute
				runFault(t, s, &seen)
			})
		}
	})
	t.Log(seen.counts)
}

// tally counts what became of the requests.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *tally) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[what]++
}

func runFault(t *testing.T, seed uint64, seen *tally) {
	random := rand.New(rand.NewPCG(seed, 1))
	f := drawFault(random)
	tune := tuning{options: tcp.Options{}, blocks: 128}
	switch f.kind {
	case "stall":
		tune.options.Lease, tune.options.Meet = 300*time.Millisecond, 300*time.Millisecond
	case "cut", "corrupt", "restart prefill", "restart decode":
		tune.options.Meet = 300 * time.Millisecond // for reservations that never come
	}
	tune.runner.TokenDelay = time.Duration(random.Int64N(20)) * time.Microsecond
	p, d := newWorker(t, "p-0", tune), newWorker(t, "d-0", tune)
	r := newRelay(t, p.endpoint.Addr().String(), f)
	t.Cleanup(func() { _ = p.endpoint.Close(); _ = d.endpoint.Close(); r.close() })
	via := p.peer()
	via.Transfer = r.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var restart func()
	switch f.kind {
	case "restart prefill":
		restart = func() { _ = p.endpoint.Close() }
	case "restart decode":
		restart = func() { _ = d.endpoint.Close() }
	case "cancel":
		restart = cancel
	}
	var wg sync.WaitGroup
	toD := d.peer()
	for i := range 1 + random.IntN(4) {
		req := request(random, 20+random.IntN(250))
		want := batchtest.Text(&batchtest.Runner{}, &req)
		wg.Go(func() {
			got := disaggregated(ctx, seed<<8|uint64(i), p, d, via, toD, req)
			seen.add(f.kind + ": " + got.kv)
			judge(t, f, got, want)
		})
	}
	if restart != nil {
		time.Sleep(f.wait)
		restart()
	}
	wg.Wait()
}

func judge(t *testing.T, f fault, got outcome, want []int32) {
	t.Helper()
	switch {
	case f.kind == "cancel" && errors.Is(got.err, context.Canceled):
	case got.err != nil || !slices.Equal(got.text, want):
		t.Errorf("%s: text %v, want %v; %q, %v", f.kind, got.text, want, got.kv, got.err)
	case f.kind == "none" && got.kv != "moved":
		t.Errorf("without a fault: %q, prefill %v", got.kv, got.prefill)
	}
}
