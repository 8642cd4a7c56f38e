package route

import (
	"container/heap"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/unit"
)

// play runs a router before engines in virtual time: one goroutine, one seed.
// An engine computes one prompt at a time, keeps an LRU of blocks, and generates
// beside that, as many at once as come.
type play struct {
	t       testing.TB
	router  *Router
	table   *load.Table
	tracker *prefix.Tracker
	view    *fleet.View
	engines []*playEngine
	samples *fleet.Samples
	now     time.Time
	due     schedule
	turn    uint64
	step    time.Duration // between two tokens
	output  int           // tokens of an answer

	chains         [][]prefix.Hash // as sent
	ttft           []time.Duration // in the order of the first tokens
	prompt, cached int64           // tokens
}

// playEngine is one worker's engine.
type playEngine struct {
	perToken time.Duration // to compute
	cache    *lru
	queue    []*call
	busy     bool
	served   int
}

// call is one request.
type call struct {
	at       time.Time
	chain    []prefix.Hash
	tokens   unit.Tokens
	then     func() // after the answer
	engine   *playEngine
	reserved *load.Reservation
	ticket   prefix.Ticket
	hit      unit.Tokens
	presence Presence
}

const playBlock = 16

type playConfig struct {
	engines int
	blocks  int // of each engine's cache
	declare bool
	policy  Policy
	step    time.Duration
	output  int
}

// newPlay makes engines that compute 1,000 prompt tokens in 6 ms.
func newPlay(t testing.TB, c playConfig) *play {
	p := &play{
		t: t, router: New(Config{Policy: c.policy, Mode: Never, Seed: 1}), table: load.NewTable(&measure.Registry{}),
		tracker: prefix.NewTracker(prefix.TrackerOptions{}), now: start, step: c.step, output: c.output,
	}
	var workers []fleet.Worker
	for i := range c.engines {
		w := fleet.Worker{ID: fleet.WorkerID(fmt.Sprintf("w%02d", i)), Epoch: 1, Role: fleet.RoleBoth, Models: []string{"m"}}
		if c.declare {
			w.Capacity = fleet.Capacity{KVBlocks: unit.Blocks(c.blocks), BlockTokens: playBlock}
		}
		workers = append(workers, w)
		p.engines = append(p.engines, &playEngine{perToken: 6 * time.Microsecond, cache: newLRU(c.blocks)})
	}
	p.view = fleet.NewView(1, workers)
	p.tracker.Follow(p.view)
	return p
}

// at schedules f.
func (p *play) at(t time.Time, f func()) {
	heap.Push(&p.due, event{t, len(p.due.list) + p.due.pushed, f})
}

// run plays until nothing is due.
func (p *play) run() {
	for p.due.Len() > 0 {
		e := heap.Pop(&p.due).(event)
		p.now = e.at
		e.do()
	}
}

// send routes a call as dispatch does.
func (p *play) send(c *call) {
	c.at = p.now
	p.chains = append(p.chains, c.chain)
	q := Query{Model: "m", Prompt: c.tokens, Chain: c.chain, BlockTokens: playBlock, Turn: p.turn, Now: p.now}
	p.turn++
	d, err := p.router.Decide(&q, p.table.Columns(p.view), p.samples, Caches{Guess: p.tracker.Table()})
	if err != nil {
		p.t.Fatal(err)
	}
	left := c.tokens - d.ServeHit
	c.reserved = d.Slots[d.Serve].Reserve(load.Prefill, load.Work{Prompt: left, Context: left})
	c.ticket = p.tracker.Dispatched(d.Server().ID, 1, c.chain)
	c.presence = p.router.Commit(&q, &d)
	c.engine = p.engines[d.Serve]
	c.engine.served++
	c.engine.queue = append(c.engine.queue, c)
	p.compute(c.engine)
}

// compute begins the next prompt, if none is underway.
func (p *play) compute(e *playEngine) {
	if e.busy || len(e.queue) == 0 {
		return
	}
	c := e.queue[0]
	e.queue = e.queue[1:]
	e.busy = true
	c.hit = min(unit.Tokens(e.cache.match(c.chain)*playBlock), c.tokens)
	p.prompt += int64(c.tokens)
	p.cached += int64(c.hit)
	p.at(p.now.Add(time.Duration(c.tokens-c.hit)*e.perToken), func() {
		e.busy = false
		e.cache.insert(c.chain)
		c.reserved.FirstToken()
		p.ttft = append(p.ttft, p.now.Sub(c.at))
		p.at(p.now.Add(time.Duration(p.output-1)*p.step), func() {
			c.reserved.Close()
			c.presence.Leave()
			p.tracker.Finished(c.ticket, c.chain, prefix.Served{Prompt: c.tokens, Cached: c.hit, Known: true})
			if c.then != nil {
				c.then()
			}
		})
		p.compute(e)
	})
}

// busiest is the served requests of the busiest engine over the mean.
func (p *play) busiest() float64 {
	most, sum := 0, 0
	for _, e := range p.engines {
		most, sum = max(most, e.served), sum+e.served
	}
	return float64(most*len(p.engines)) / float64(sum)
}

func (p *play) share() float64 { return float64(p.cached) / float64(p.prompt) }

func (p *play) mean() time.Duration {
	var sum time.Duration
	for _, d := range p.ttft {
		sum += d
	}
	return sum / time.Duration(len(p.ttft))
}

// event is something that happens at a time; among equals in order.
type event struct {
	at  time.Time
	seq int
	do  func()
}

type schedule struct {
	list   []event
	pushed int
}

func (s *schedule) Len() int { return len(s.list) }
func (s *schedule) Less(i, j int) bool {
	a, b := s.list[i], s.list[j]
	return a.at.Before(b.at) || a.at.Equal(b.at) && a.seq < b.seq
}
func (s *schedule) Swap(i, j int) { s.list[i], s.list[j] = s.list[j], s.list[i] }
func (s *schedule) Push(x any)    { s.pushed++; s.list = append(s.list, x.(event)) }
func (s *schedule) Pop() any {
	e := s.list[len(s.list)-1]
	s.list = s.list[:len(s.list)-1]
	return e
}

// lru is an engine's cache of blocks, the first of a chain used last.
type lru struct {
	capacity int
	clock    int
	at       map[prefix.Hash]int
	order    []used // by use; entries that were used since are stale
}

type used struct {
	hash prefix.Hash
	at   int
}

func newLRU(capacity int) *lru { return &lru{capacity: capacity, at: map[prefix.Hash]int{}} }

func (l *lru) match(chain []prefix.Hash) (n int) {
	for n < len(chain) && l.at[chain[n]] != 0 {
		n++
	}
	return n
}

func (l *lru) insert(chain []prefix.Hash) {
	for _, hash := range slices.Backward(chain) {
		l.clock++
		l.at[hash] = l.clock
		l.order = append(l.order, used{hash, l.clock})
		for len(l.at) > l.capacity {
			oldest := l.order[0]
			l.order = l.order[1:]
			if l.at[oldest.hash] == oldest.at {
				delete(l.at, oldest.hash)
			}
		}
	}
}
