package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/bench/rig"
	"github.com/yardmaster/yardmaster/core/sim/trace"
	"github.com/yardmaster/yardmaster/core/unit"
)

// Prefix is how much of a trace's prompts was found in the workers' caches.
type Prefix struct {
	Requests    int     `json:"requests"`
	Speed       float64 `json:"speed"`
	FleetBlocks int     `json:"fleet_blocks"` // of 16 tokens
	One         Replay  `json:"one_gateway"`
	Four        Replay  `json:"four_gateways"`
	Difference  float64 `json:"difference"` // of the cached shares
	// Oracle is the cached share of one cache with the fleet's blocks, least
	// recently used first out.
	Oracle float64 `json:"oracle_cached_share"`
}

// Replay is one run of the trace.
type Replay struct {
	CachedShare float64 `json:"cached_share"` // cached tokens over prompt tokens
	Failed      int     `json:"failed"`
	Seconds     float64 `json:"seconds"`
	P50MS       float64 `json:"p50_ms"`
	P99MS       float64 `json:"p99_ms"`
}

const (
	prefixWorkers = 4
	// workerBlocks is a worker's cache for the trace: 131,072 blocks of 16 tokens.
	workerBlocks = 1 << 17
	// traceTokens is how much a request of the trace generates at most, at a pace
	// that makes requests overlap as on real engines.
	traceTokens = 8
	tracePace   = 100 * time.Millisecond
	blockTokens = 16
	// prefillSpeed makes an engine of the preset compute 1,000 tokens in about
	// 6 ms, as many times faster as the trace is replayed.
	preset       = "llama-3.1-8b-fp8-h100x1"
	prefillSpeed = 3
	// replayTime bounds a request of the trace.
	replayTime = 5 * time.Minute
)

func (b *bench) prefix(ctx context.Context) error {
	r := &Prefix{
		Requests: len(b.Trace), Speed: b.Speed, FleetBlocks: prefixWorkers * workerBlocks,
		Oracle: oracle(b.Trace, prefixWorkers*workerBlocks),
	}
	for _, run := range []struct {
		gateways int
		out      *Replay
	}{{1, &r.One}, {4, &r.Four}} {
		b.say(fmt.Sprintf("prefix: replaying %d requests through %d gateway(s)", len(b.Trace), run.gateways))
		s := shape{gateways: run.gateways, workers: prefixWorkers, engine: engine{
			kvBlocks: workerBlocks, timing: preset, speed: prefillSpeed, token: tracePace, events: true,
		}}
		err := b.with(ctx, s, func(ctx context.Context, f *fleet) (err error) {
			*run.out, err = b.replay(ctx, f)
			return err
		})
		if err != nil {
			return err
		}
	}
	r.Difference = r.One.CachedShare - r.Four.CachedShare
	b.result.Prefix = r
	b.bar(most("cached share with one gateway over that with four", max(r.Difference, -r.Difference), 0.02),
		most("requests of the trace that failed", float64(r.One.Failed+r.Four.Failed), 0))
	return nil
}

// replay sends the trace's requests when they are due, each to a gateway that
// chance chooses.
func (b *bench) replay(ctx context.Context, f *fleet) (Replay, error) {
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a workload needs no secrecy
	t := &tally{}
	begin := time.Now()
	var task sync.WaitGroup
	for i, at := range dueTimes(b.Trace) {
		row, c := &b.Trace[i], f.clients[rng.IntN(len(f.clients))]
		if err := rig.Pause(ctx, time.Until(begin.Add(time.Duration(float64(at)/b.Speed)))); err != nil {
			task.Wait()
			return Replay{}, err
		}
		task.Go(func() {
			t.ask(ctx, c, request{prompt: traceText(row), tokens: int(max(1, min(row.Output, traceTokens)))})
		})
	}
	task.Wait()
	out := Replay{CachedShare: t.share(), Failed: t.failed, Seconds: time.Since(begin).Seconds()}
	out.P50MS, out.P99MS = milliseconds(quantile(t.took, 0.5)), milliseconds(quantile(t.took, 0.99))
	if t.asked == 0 {
		return out, t.fault
	}
	return out, ctx.Err()
}

// dueTimes are when the rows' requests are sent, before speed. Some traces' clocks
// move in steps: rows of one step are spread until the next.
func dueTimes(rows []trace.Request) []time.Duration {
	out := make([]time.Duration, len(rows))
	for i := 0; i < len(rows); {
		end := i
		for end < len(rows) && rows[end].At <= rows[i].At {
			end++
		}
		until := rows[i].At
		if end < len(rows) {
			until = rows[end].At
		}
		for k := i; k < end; k++ {
			out[k] = rows[i].At + (until-rows[i].At)*time.Duration(k-i)/time.Duration(end-i)
		}
		i = end
	}
	return out
}

// tally adds up what answers say of caches.
type tally struct {
	mu             sync.Mutex
	asked, failed  int
	prompt, cached int // tokens
	took           []time.Duration
	fault          error // the first
}

// ask sends a request and counts its answer; ok says that there was one.
func (t *tally) ask(ctx context.Context, c *client, r request) (a answer, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, replayTime)
	defer cancel()
	begin := time.Now()
	a, err := c.ask(ctx, r)
	took := time.Since(begin)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.failed++
		if t.fault == nil {
			t.fault = err
		}
		return a, false
	}
	t.asked++
	t.prompt += a.prompt
	t.cached += a.cached
	t.took = append(t.took, took)
	return a, true
}

// share is the cached tokens over the prompts' tokens; 0 when nothing was asked.
func (t *tally) share() float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.prompt == 0 {
		return 0
	}
	return float64(t.cached) / float64(t.prompt)
}

// oracle is the cached share that one cache of so many blocks gives the trace in
// its order, the least recently used out first.
func oracle(rows []trace.Request, blocks int) float64 {
	cache := newLRU(blocks)
	var prompt, cached unit.Tokens
	for _, row := range rows {
		prompt += row.Input
		hits, inARow := unit.Tokens(0), true
		for n := range row.Input / blockTokens { // whole blocks only
			id := row.Blocks[n*blockTokens/trace.BlockTokens]
			held := cache.use(blockKey{id, int(n)})
			if inARow = inARow && held; inARow {
				hits++
			}
		}
		// The last token is always computed.
		cached += min(hits, max(row.Input-1, 0)/blockTokens) * blockTokens
	}
	if prompt == 0 {
		return 0
	}
	return float64(cached) / float64(prompt)
}
