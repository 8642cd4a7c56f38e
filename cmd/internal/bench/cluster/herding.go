package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/bench/rig"
)

// Herding is how evenly bursts are spread over equal workers by gateways that
// place them at the same moment.
type Herding struct {
	Gateways int    `json:"gateways"`
	Workers  int    `json:"workers"`
	Burst    int    `json:"burst"` // requests
	Distinct Spread `json:"distinct_prompts"`
	Hot      Spread `json:"one_hot_prefix"` // which one worker holds when the burst comes
}

// Spread is the busiest worker's requests over the mean of all workers.
type Spread struct {
	Bursts  int     `json:"bursts"`
	All     float64 `json:"max_over_mean"` // of all bursts' requests together
	Worst   float64 `json:"worst_burst"`
	Typical float64 `json:"median_burst"`
	Failed  int     `json:"failed"`
	// TookMS is the median of the time until the last answer of a burst.
	TookMS float64 `json:"took_ms"`
}

const (
	herdGateways = 4
	herdWorkers  = 8
	burst        = 64
	// herdPrompt, hotPrompt and herdOutput are tokens.
	herdPrompt = 512
	hotPrompt  = 2048
	herdOutput = 16
)

func (b *bench) herding(ctx context.Context) error {
	b.say("herding: starting three planners, four gateways, eight workers")
	s := shape{gateways: herdGateways, workers: herdWorkers, engine: engine{kvBlocks: 1 << 15, timing: preset, speed: 1, events: true}}
	return b.with(ctx, s, func(ctx context.Context, f *fleet) error {
		r := &Herding{Gateways: herdGateways, Workers: herdWorkers, Burst: burst}
		for _, kind := range []struct {
			hot  bool
			what string
			out  *Spread
		}{{false, "distinct prompts", &r.Distinct}, {true, "one hot prefix", &r.Hot}} {
			b.say(fmt.Sprintf("herding: %d bursts of %d requests, %s", b.Bursts, burst, kind.what))
			var err error
			if *kind.out, err = b.spread(ctx, f, kind.hot); err != nil {
				return err
			}
		}
		b.result.Herding = r
		b.bar(most("busiest worker over the mean, all bursts", r.Distinct.All, 1.25),
			most("busiest worker over the mean, worst burst", r.Distinct.Worst, 1.25),
			most("requests of bursts that failed", float64(r.Distinct.Failed+r.Hot.Failed), 0))
		return nil
	})
}

// spread sends bursts with rests between them.
func (b *bench) spread(ctx context.Context, f *fleet, hot bool) (s Spread, err error) {
	total := map[string]int{}
	var ratios []float64
	var took []time.Duration
	for n := range b.Bursts {
		shared := ""
		if hot {
			shared = piece(kindGroup, uint64(n)|1<<32, hotPrompt)
			if _, err := f.clients[n%len(f.clients)].ask(ctx, request{prompt: shared, tokens: 1}); err != nil {
				return s, err
			}
		}
		if err := rig.Pause(ctx, b.Settle); err != nil { // until all is told, and at rest
			return s, err
		}
		begin := time.Now()
		served, failed := burstOf(ctx, f, shared, n)
		took = append(took, time.Since(begin))
		s.Failed += failed
		ratios = append(ratios, overMean(served))
		for w, count := range served {
			total[w] += count
		}
	}
	s.Bursts, s.All = b.Bursts, overMean(total)
	s.Worst, s.Typical, s.TookMS = quantile(ratios, 1), quantile(ratios, 0.5), milliseconds(quantile(took, 0.5))
	return s, ctx.Err()
}

// burstOf sends the requests of one burst in one moment and counts them by the
// worker that served them.
func burstOf(ctx context.Context, f *fleet, shared string, n int) (served map[string]int, failed int) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	served = map[string]int{}
	var mu sync.Mutex
	var task sync.WaitGroup
	start := make(chan struct{})
	for i := range burst {
		r := request{prompt: shared + piece(kindOwn, uint64(n)<<32|uint64(i)|1<<60, herdPrompt), tokens: herdOutput}
		c := f.clients[i%len(f.clients)]
		task.Go(func() {
			<-start
			a, err := c.ask(ctx, r)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed++
				return
			}
			served[a.worker]++
		})
	}
	close(start)
	task.Wait()
	return served, failed
}

// overMean is the largest count over the mean of all workers; 0 without any.
func overMean(served map[string]int) float64 {
	sum, largest := 0, 0
	for _, n := range served {
		sum, largest = sum+n, max(largest, n)
	}
	if sum == 0 {
		return 0
	}
	return float64(largest*herdWorkers) / float64(sum)
}
