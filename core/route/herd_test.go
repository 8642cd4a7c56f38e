package route

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/unit"
)

// text is a chain of n blocks that no other text has.
func text(seed, n int) []prefix.Hash {
	r := rand.New(rand.NewPCG(uint64(seed), 9))
	out := make([]prefix.Hash, n)
	for i := range out {
		out[i] = prefix.Hash(r.Uint64())
	}
	return out
}

// conversations sends the turns of sessions, each of one of the groups, at rate
// a second: all first turns in random order, then all second ones, and so on.
// Each turn asks 8 blocks more.
func (p *play) conversations(groups, sessions, turns, shared int, rate float64, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	chains := make([][]prefix.Hash, sessions)
	for i, s := range r.Perm(sessions) {
		chains[i] = text(s%groups, shared)
	}
	at := p.now
	for turn := range turns {
		for i := range chains {
			at = at.Add(time.Duration(r.ExpFloat64() / rate * float64(time.Second)))
			p.at(at, func() {
				chains[i] = append(slices.Clone(chains[i]), text(1000+i*turns+turn, 8)...)
				p.send(&call{chain: chains[i], tokens: unit.Tokens(len(chains[i])*playBlock + 5)})
			})
		}
	}
}

// oracle is the cached share of one cache of the whole fleet's size.
func (p *play) oracle(blocks int) float64 {
	cache := newLRU(blocks)
	var hit, all int
	for _, chain := range p.chains {
		hit += cache.match(chain)
		all += len(chain)
		cache.insert(chain)
	}
	return float64(hit) / float64(all)
}

// Prefix groups spread evenly and stay where they are, whether requests overlap
// or come one by one, and although no engine says how large its cache is. The
// share found cached is that of one cache as large as all together.
func TestGroupsStayTogetherAndSpread(t *testing.T) {
	const blocks = 16384
	for _, engines := range []int{4, 8} {
		for _, step := range []time.Duration{0, 20 * time.Millisecond} {
			p := newPlay(t, playConfig{engines: engines, blocks: blocks / engines, step: step, output: 8})
			p.conversations(64, 512, 3, 128, 100, 1)
			p.run()
			if got, want := p.share(), p.oracle(blocks); got < .99*want {
				t.Errorf("%d engines, %v a token: cached %.3f, the oracle %.3f", engines, step, got, want)
			}
			if got := p.busiest(); got > 1.25 {
				t.Errorf("%d engines, %v a token: busiest %.2f of the mean", engines, step, got)
			}
		}
	}
}

// One hot prefix and 24 calls at once: those that share it are what crowds the
// worker, so it is copied, whether it was computed before or not.
func TestHotPrefixSpreads(t *testing.T) {
	for _, warm := range []bool{false, true} {
		for _, blocks := range []int{16, 128, 2048} {
			p := newPlay(t, playConfig{engines: 4, blocks: 16384, step: 20 * time.Millisecond, output: 8})
			prefix := text(1, blocks)
			if warm {
				p.at(start, func() { p.send(&call{chain: prefix, tokens: unit.Tokens(blocks * playBlock)}) })
			}
			later := start.Add(time.Minute)
			p.at(later, func() {
				for _, e := range p.engines {
					e.served = 0
				}
			})
			for i := range 24 {
				p.at(later.Add(time.Duration(i)*50*time.Microsecond), func() {
					chain := append(slices.Clone(prefix), text(100+i, 8)...)
					p.send(&call{chain: chain, tokens: unit.Tokens(len(chain) * playBlock)})
				})
			}
			p.run()
			if got := p.busiest(); got > 1.34 {
				t.Errorf("warm %v, %d blocks: busiest %.2f of the mean", warm, blocks, got)
			}
		}
	}
}

// A queue of other prompts is no reason to leave the worker that holds the
// prompt: queues come and go, what is computed twice stays.
func TestPassingQueueDoesNotBreakAffinity(t *testing.T) {
	p := newPlay(t, playConfig{engines: 2, blocks: 4096, output: 8})
	session := text(1, 64)
	var home, again *playEngine
	p.at(start, func() {
		c := &call{chain: session, tokens: 1024}
		p.send(c)
		home = c.engine
	})
	p.at(start.Add(time.Minute), func() {
		p.engines[slices.Index(p.engines, home)].busy = true // stalled for a while
		for i := range 4 {
			p.send(&call{chain: text(10+i, 32), tokens: 512})
		}
		c := &call{chain: append(slices.Clone(session), text(2, 4)...), tokens: 1100}
		p.send(c)
		again = c.engine
	})
	p.run()
	if home != again {
		t.Error("the session moved")
	}
}

// A slow worker with prompts that nobody holds gets the rest of what the idle
// one can take, not half: a miss follows load.
func TestMissesFollowLoad(t *testing.T) {
	p := newPlay(t, playConfig{engines: 2, blocks: 1 << 16, output: 8})
	p.engines[0].perToken = 20 * p.engines[1].perToken
	at := start
	for i := range 300 {
		at = at.Add(8 * time.Millisecond) // the fast one alone needs 6
		p.at(at, func() { p.send(&call{chain: text(i, 62), tokens: 1000}) })
	}
	p.run()
	if share := float64(p.engines[0].served) / 300; share >= .3 {
		t.Errorf("the slow worker got %.0f %%", 100*share)
	}
}

// Four sessions, one of them heavy: it keeps its worker, and the others are not
// put beside it.
func TestHeavySessionDoesNotCrowdOthers(t *testing.T) {
	p := newPlay(t, playConfig{engines: 2, blocks: 1 << 15, step: 5 * time.Millisecond, output: 16})
	r := rand.New(rand.NewPCG(4, 4))
	at := start
	chains := make([][]prefix.Hash, 4)
	for i := range chains {
		chains[i] = text(i, 64)
	}
	asked := make([]int, 4)
	for i := range 400 {
		at = at.Add(time.Duration(r.ExpFloat64() * float64(10*time.Millisecond)))
		session, more := r.IntN(4), 2
		if r.IntN(10) < 6 {
			session, more = 0, 12
		}
		p.at(at, func() {
			asked[session]++
			if chains[session] = append(slices.Clone(chains[session]), text(1000+i, more)...); len(chains[session]) > 512 {
				chains[session] = chains[session][:64]
			}
			p.send(&call{chain: chains[session], tokens: unit.Tokens(len(chains[session]) * playBlock)})
		})
	}
	p.run()
	if got, want := p.share(), p.oracle(1<<16); got < .97*want {
		t.Errorf("cached %.3f of %.3f", got, want)
	}
	if got := p.busiest(); got > 1.4 {
		t.Errorf("busiest %.2f of the mean", got)
	}
	if mean := p.mean(); mean > 10*time.Millisecond {
		t.Errorf("first tokens after %v in the mean", mean)
	}
}

// What others had on a worker counts while somebody says so. When the samples end,
// as they do when the planners are gone, it is unknown, not what it last was.
func TestForeignLoadEndsWithItsSamples(t *testing.T) {
	heard := func(running fleet.Reading) *fleet.Samples {
		return fleet.NewSamples([]fleet.Sample{{ID: "a", Epoch: 1, At: start, Stats: fleet.Stats{Running: running}}})
	}
	for name, after := range map[string]*fleet.Samples{"no samples": fleet.NewSamples(nil), "a broken gauge": heard(fleet.Report(math.NaN()))} {
		y := newYard(fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"})
		y.slot("b").Reserve(load.Prefill, load.Work{})
		r := New(Config{Policy: LeastRequest{}, Mode: Never})
		if d := y.decide(t, r, Query{}, heard(fleet.Report(9))); d.Server().ID != "b" {
			t.Errorf("%s: others have 9 requests on a, and it was chosen", name)
		}
		if d := y.decide(t, r, Query{}, after); d.Server().ID != "a" {
			t.Errorf("%s: a is still avoided", name)
		}
	}
}

// Load is polled each 5 s; a burst in between is spread by what this gateway
// sent itself, on top of what others had.
func TestBurstBetweenPolls(t *testing.T) {
	for _, policy := range []Policy{Sticky{}, LeastRequest{}, LMetric{}, KVCost{}} {
		p := newPlay(t, playConfig{engines: 2, blocks: 1 << 12, policy: policy, step: time.Second, output: 8})
		p.samples = fleet.NewSamples([]fleet.Sample{
			{ID: "w00", Epoch: 1, At: start, Stats: fleet.Stats{Running: fleet.Report(0), Waiting: fleet.Report(0)}},
			{ID: "w01", Epoch: 1, At: start, Stats: fleet.Stats{Running: fleet.Report(0)}},
		})
		for i := range 8 {
			p.send(&call{chain: text(i, 10), tokens: 160})
		}
		if a, b := p.engines[0].served, p.engines[1].served; a != 4 || b != 4 {
			t.Errorf("%s: %d and %d", policy.Name(), a, b)
		}
		p.run()
	}
}

// Others' requests, as the workers report them, count like own ones.
func TestForeignLoadCounts(t *testing.T) {
	p := newPlay(t, playConfig{engines: 2, blocks: 1 << 12, step: time.Second, output: 8})
	p.samples = fleet.NewSamples([]fleet.Sample{
		{ID: "w00", Epoch: 1, At: start, Stats: fleet.Stats{Running: fleet.Report(4), Waiting: fleet.Report(2)}},
		{ID: "w01", Epoch: 1, At: start, Stats: fleet.Stats{Running: fleet.Report(0)}},
	})
	for i := range 6 {
		p.send(&call{chain: text(i, 10), tokens: 160})
	}
	if p.engines[0].served > 2 {
		t.Errorf("the loaded worker got %d of 6", p.engines[0].served)
	}
	p.run()
}

// Two texts that differ at the start share nothing, whatever they share later.
func TestOnlyLeadingBlocksAreAHit(t *testing.T) {
	p := newPlay(t, playConfig{engines: 2, blocks: 1 << 12, output: 8})
	chain := func(first int32) []prefix.Hash {
		tokens := make([]int32, 41*playBlock)
		tokens[0] = first
		return prefix.AppendChain(nil, prefix.Domain("m", ""), tokens, playBlock)
	}
	p.send(&call{chain: chain(1), tokens: 656})
	p.run()
	q := Query{Model: "m", Prompt: 656, Chain: chain(2), BlockTokens: playBlock, Now: p.now}
	d, err := p.router.Decide(&q, p.table.Columns(p.view), nil, Caches{Guess: p.tracker.Table()})
	if err != nil || d.ServeHit != 0 || d.Serve == slices.IndexFunc(p.engines, func(e *playEngine) bool { return e.served > 0 }) {
		t.Errorf("hit %d on %d, %v", d.ServeHit, d.Serve, err)
	}
}

// The holder of a prefix is dead: the prompt goes elsewhere, and stays there.
func TestAffinityEndsWithTheWorker(t *testing.T) {
	p := newPlay(t, playConfig{engines: 3, blocks: 1 << 12, output: 8})
	c := &call{chain: text(1, 64), tokens: 1024}
	p.send(c)
	p.run()
	dead := slices.Index(p.engines, c.engine)
	p.table.Columns(p.view).Slots[dead].Eject(p.now, load.Backoff{First: time.Hour, Longest: time.Hour})
	var next *playEngine
	for range 5 {
		again := &call{chain: c.chain, tokens: c.tokens}
		p.send(again)
		p.run()
		if again.engine == c.engine || next != nil && again.engine != next {
			t.Fatalf("the prompt went to %d, then %d", dead, slices.Index(p.engines, again.engine))
		}
		next = again.engine
	}
}
