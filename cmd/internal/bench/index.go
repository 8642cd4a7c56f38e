package bench

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/sim/trace"
	"github.com/yardmaster/yardmaster/core/unit"
)

// IndexOptions shape a measurement of the prefix index. Zero fields mean the
// defaults.
type IndexOptions struct {
	Trace   []trace.Request // default: a generated conversation trace of 12,000
	Workers int             // 128
	Cache   unit.Blocks     // of each worker, 4096
	Copies  int             // of the trace, with other block ids; 4
	Seed    uint64
	// Memory provides the tables' memory, as in prefix.Options.
	Memory func(*prefix.Index) prefix.Memory
}

// IndexResult is what the index costs. A block operation is one block looked up,
// stored or removed; the rates include applying everything.
type IndexResult struct {
	BlockOpsPerS   float64 `json:"block_ops_per_s"`  // one core, lookups and updates interleaved
	LookupP50us    float64 `json:"lookup_p50_us"`    // the trace's prompts
	LookupP99us    float64 `json:"lookup_p99_us"`    // the trace's prompts
	BytesPerBlock  float64 `json:"bytes_per_block"`  // 1 M blocks held by up to 8 workers each
	LongLookupP50  float64 `json:"long_lookup_us"`   // median: 8,192 blocks over 64 workers, of 1 M
	LongLookupMin  float64 `json:"long_lookup_min"`  // of the same, the least disturbed, us
	ReadersSpeedup float64 `json:"two_readers"`      // lookups of two readers over those of one, a writer running
	ReadersCPU     float64 `json:"two_readers_cpu"`  // the same per processor time: what it is if each has a processor; 0 is unknown
	BudgetMiB      float64 `json:"budget_mib"`       // of the next two
	BudgetUsedMiB  float64 `json:"budget_used_mib"`  // the index's own gauge after 10 M unique chains
	BudgetRSSMiB   float64 `json:"budget_rss_mib"`   // growth of the process's resident memory
	HashMTokS      float64 `json:"hash_mtok_s"`      // million tokens hashed a second, blocks of 16
	Blocks         int     `json:"trace_block_ops"`  // block operations of the replay
	Requests       int     `json:"trace_requests"`   // requests of the replay
	Workers        int     `json:"workers"`          // of the replay
	HitShare       float64 `json:"replay_hit_share"` // blocks found on the worker chosen
}

// step is one request of the replay: what is looked up, and what the chosen
// worker's cache gains and loses by serving it.
type step struct {
	chain            []prefix.Hash
	worker           int
	stored, removed  []prefix.Hash
	hitBlocks, total int
}

// Index measures the prefix index. progress, when not nil, is told each stage.
func Index(o IndexOptions, progress func(string)) (IndexResult, error) {
	if o.Trace == nil {
		o.Trace = trace.Generate(o.Seed+1, 12_000)
	}
	o.Workers, o.Cache, o.Copies = orDefault(o.Workers, 128), orDefault(o.Cache, 4096), orDefault(o.Copies, 4)
	say := func(s string) {
		if progress != nil {
			progress(s)
		}
	}
	r := IndexResult{Workers: o.Workers}
	say("resident memory at the budget (10 M unique chains)")
	if err := measureBudget(&r, o.Memory); err != nil {
		return r, err
	}
	say("building the replay")
	steps := plan(o)
	say("replaying on one core")
	if err := replay(&r, o, steps); err != nil {
		return r, err
	}
	say("1 M blocks: memory, long lookups, readers")
	measureLarge(&r, o.Memory)
	measureHash(&r)
	return r, nil
}

func orDefault[T ~int](v, def T) T {
	if v <= 0 {
		return def
	}
	return v
}

// plan runs the trace over model caches, sending each request to the worker of a
// hash of its conversation's first own block, so that workers see reuse.
func plan(o IndexOptions) []step {
	rng := rand.New(rand.NewPCG(o.Seed, 3)) //nolint:gosec // a workload needs no secrecy
	shadow := prefix.New(prefix.Options{Workers: o.Workers, Budget: 4 << 30})
	caches := make([]*prefix.Cache, o.Workers)
	for i := range caches {
		w, _ := shadow.Attach(uint64(i + 1))
		caches[i] = prefix.NewCache(shadow, w, o.Cache)
	}
	var steps []step
	for c := range o.Copies {
		salt := rng.Uint64()
		for _, req := range o.Trace {
			chain := make([]prefix.Hash, len(req.Blocks))
			for i, b := range req.Blocks {
				chain[i] = prefix.AppendChain(nil, prefix.Hash(salt), []int32{int32(b), int32(b >> 32), int32(c)}, 3)[0]
			}
			if len(chain) == 0 {
				continue
			}
			w := int(uint64(chain[min(1, len(chain)-1)]) % uint64(o.Workers))
			known := caches[w].Known(chain)
			stored, removed := caches[w].Touch(chain)
			steps = append(steps, step{chain, w, slices.Clone(stored), slices.Clone(removed), known, len(chain)})
		}
	}
	return steps
}

// replay measures lookups and updates on one core, interleaved as they come.
func replay(r *IndexResult, o IndexOptions, steps []step) error {
	x := prefix.New(prefix.Options{Workers: o.Workers, Budget: 4 << 30, Memory: o.Memory})
	for i := range o.Workers {
		if _, err := x.Attach(uint64(i + 1)); err != nil {
			return fmt.Errorf("bench index: %w", err)
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	debug.FreeOSMemory()
	times := make([]float64, 0, len(steps))
	var hits prefix.Hits
	var hit, asked int
	start := time.Now()
	for i := range steps {
		s := &steps[i]
		before := time.Now()
		x.Lookup(s.chain, &hits)
		times = append(times, float64(time.Since(before).Nanoseconds())/1e3)
		hit += hits.Of(prefix.Worker(s.worker))
		asked += s.total
		x.Store(prefix.Worker(s.worker), s.stored)
		x.Remove(prefix.Worker(s.worker), s.removed)
		r.Blocks += len(s.chain) + len(s.stored) + len(s.removed)
	}
	took := time.Since(start)
	want := 0
	for i := range steps {
		want += steps[i].hitBlocks
	}
	if hit != want {
		return fmt.Errorf("bench index: the index found %d blocks where the caches held %d", hit, want)
	}
	slices.Sort(times)
	r.Requests, r.HitShare = len(steps), float64(hit)/float64(asked)
	r.BlockOpsPerS = float64(r.Blocks) / took.Seconds()
	r.LookupP50us, r.LookupP99us = times[len(times)/2], times[len(times)*99/100]
	return nil
}

const largeBlocks, longChain = 1 << 20, 8192

// measureLarge fills an index with 1 M blocks in long chains over 64 workers,
// each held by eight.
func measureLarge(r *IndexResult, memory func(*prefix.Index) prefix.Memory) {
	x := prefix.New(prefix.Options{Budget: 1 << 30, Memory: memory})
	var ws []prefix.Worker
	for i := range 64 {
		w, _ := x.Attach(uint64(i + 1))
		ws = append(ws, w)
	}
	rng := rand.New(rand.NewPCG(9, 9)) //nolint:gosec // a workload needs no secrecy
	chains := make([][]prefix.Hash, largeBlocks/longChain)
	for i := range chains {
		chains[i] = make([]prefix.Hash, longChain)
		for j := range chains[i] {
			chains[i][j] = prefix.Hash(rng.Uint64())
		}
		for k, first := 0, rng.IntN(64); k < 8; k++ {
			x.Store(ws[(first+7*k)%64], chains[i])
		}
	}
	r.BytesPerBlock = float64(x.Stats().Bytes) / largeBlocks
	var times []float64
	var hits prefix.Hits
	for i := range 400 {
		before := time.Now()
		x.Lookup(chains[i*31%len(chains)], &hits)
		times = append(times, float64(time.Since(before).Nanoseconds())/1e3)
	}
	slices.Sort(times)
	r.LongLookupP50, r.LongLookupMin = times[len(times)/2], times[0]
	measureReaders(r, x, chains, ws[0])
}

// measureReaders compares one reader with two, in turns, since a machine's speed
// drifts.
func measureReaders(r *IndexResult, x *prefix.Index, chains [][]prefix.Hash, w prefix.Worker) {
	var sums [3]readers
	for range 5 {
		for n := 1; n <= 2; n++ {
			sums[n].add(readersBesideWriter(x, chains, w, n))
		}
	}
	one, two := sums[1], sums[2]
	r.ReadersSpeedup = two.perSecond / one.perSecond
	if one.busy > 0 && two.busy > 0 {
		r.ReadersCPU = 2 * (two.lookups / two.busy.Seconds()) / (one.lookups / one.busy.Seconds())
	}
}

// readers is what some readers did.
type readers struct {
	lookups, perSecond float64
	busy               time.Duration // processor time of them all
}

func (s *readers) add(more readers) {
	s.lookups, s.perSecond, s.busy = s.lookups+more.lookups, s.perSecond+more.perSecond, s.busy+more.busy
}

// readersBesideWriter has n readers look up 512 blocks at a time while a writer
// applies 150,000 block operations a second.
func readersBesideWriter(x *prefix.Index, chains [][]prefix.Hash, w prefix.Worker, n int) readers {
	var stop atomic.Bool
	var done, busy atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a workload needs no secrecy
		batch := make([]prefix.Hash, 375)
		for !stop.Load() {
			for i := range batch {
				batch[i] = prefix.Hash(rng.Uint64())
			}
			x.Store(w, batch)
			x.Remove(w, batch)
			time.Sleep(5 * time.Millisecond)
		}
	})
	for k := range n {
		wg.Go(func() {
			runtime.LockOSThread() // it ends with the goroutine
			var hits prefix.Hits
			before, lookups := threadTime(), int64(0)
			for i := k; !stop.Load(); i++ {
				x.Lookup(chains[i%len(chains)][:512], &hits)
				lookups++
			}
			busy.Add(int64(threadTime() - before))
			done.Add(lookups)
		})
	}
	start := time.Now()
	time.Sleep(300 * time.Millisecond)
	stop.Store(true)
	took := time.Since(start)
	wg.Wait()
	lookups := float64(done.Load())
	return readers{lookups, lookups / took.Seconds(), time.Duration(busy.Load())}
}

// measureBudget stores 10 M chains that never come again into a bounded index.
func measureBudget(r *IndexResult, memory func(*prefix.Index) prefix.Memory) error {
	const budget, chains = 128 << 20, 10_000_000
	debug.FreeOSMemory()
	before, err := residentMiB()
	if err != nil {
		return err
	}
	x := prefix.New(prefix.Options{Budget: budget, Memory: memory})
	w, _ := x.Attach(1)
	rng := rand.New(rand.NewPCG(5, 5)) //nolint:gosec // a workload needs no secrecy
	chain := make([]prefix.Hash, 4)
	for range chains {
		for i := range chain {
			chain[i] = prefix.Hash(rng.Uint64())
		}
		x.Store(w, chain)
	}
	debug.FreeOSMemory()
	after, err := residentMiB()
	r.BudgetMiB, r.BudgetUsedMiB, r.BudgetRSSMiB = budget>>20, float64(x.Stats().Bytes)/(1<<20), after-before
	runtime.KeepAlive(x)
	return err
}

// residentMiB reads the process's resident memory; 0 where there is no /proc.
func residentMiB() (float64, error) {
	b, err := os.ReadFile("/proc/self/statm")
	if os.IsNotExist(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("bench index: %w", err)
	}
	fields := strings.Fields(string(b))
	if len(fields) < 2 {
		return 0, nil
	}
	pages, err := strconv.ParseFloat(fields[1], 64)
	if err != nil {
		return 0, fmt.Errorf("bench index: %w", err)
	}
	return pages * float64(os.Getpagesize()) / (1 << 20), nil
}

func measureHash(r *IndexResult) {
	tokens := make([]int32, 131_072)
	for i := range tokens {
		tokens[i] = int32(i * 31)
	}
	dst := make([]prefix.Hash, 0, 8192)
	best := time.Hour
	for range 20 {
		before := time.Now()
		dst = prefix.AppendChain(dst[:0], 1, tokens, 16)
		best = min(best, time.Since(before))
	}
	r.HashMTokS = float64(len(tokens)) / best.Seconds() / 1e6
}
